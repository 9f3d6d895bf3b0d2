/* Tensors to and from another library, by the structures of dlpack.h 1.0, which stand here as it has them. */
#define _POSIX_C_SOURCE 200809L
#include <stdint.h>

#include "check.h"

typedef struct {
    uint32_t major, minor;
} DLPackVersion;

typedef struct {
    int32_t device_type, device_id;
} DLDevice;

typedef struct {
    uint8_t code, bits;
    uint16_t lanes;
} DLDataType;

typedef struct {
    void *data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} DLTensor;

struct DLManagedTensorVersioned {
    DLPackVersion version;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensorVersioned *self);
    uint64_t flags;
    DLTensor dl_tensor;
};

static int deleted;

static void deleter(struct DLManagedTensorVersioned *self) {
    (void)self;
    deleted++;
}

static float elements[6] = {9, 1, 2, 3, 4, 5};
static int64_t shape[2] = {1, 5}, strides[2] = {5, 1}, wrong[2] = {1, 2};

/* What another library gives. */
static struct DLManagedTensorVersioned foreign(void) {
    struct DLManagedTensorVersioned managed = {0};
    managed.version.major = 1;
    managed.deleter = deleter;
    managed.dl_tensor.data = elements;
    managed.dl_tensor.byte_offset = 4;
    managed.dl_tensor.device.device_type = 1;
    managed.dl_tensor.ndim = 2;
    managed.dl_tensor.dtype = (DLDataType){2, 32, 1};
    managed.dl_tensor.shape = shape;
    managed.dl_tensor.strides = strides;
    return managed;
}

static void they_come(slipring_context *context) {
    slipring_connection *near, *far;
    slipring_tensor *tensor = NULL;
    slipring_tensor_view view;
    struct DLManagedTensorVersioned managed = foreign();
    OK(slipring_pair(context, &near, &far));
    OK(slipring_tensor_from_dlpack(context, &managed, HANG, &tensor));
    CHECK(deleted == 1);
    OK(slipring_tensor_get_view(tensor, &view, sizeof view));
    CHECK(view.dtype == SLIPRING_DTYPE_FLOAT32 && view.rank == 2 && view.shape[0] == 1 && view.shape[1] == 5);
    CHECK(view.flags == SLIPRING_TENSOR_WRITABLE && memcmp(view.data, elements + 1, 20) == 0);
    ((float *)view.data)[4] = 6;
    OK(slipring_send_tensor(near, tensor, HANG));
    OK(slipring_recv_tensor(far, HANG, &tensor));
    OK(slipring_tensor_get_view(tensor, &view, sizeof view));
    CHECK(((float *)view.data)[0] == 1 && ((float *)view.data)[4] == 6);
    OK(slipring_tensor_free(tensor));
    OK(slipring_connection_close(near));
    OK(slipring_connection_close(far));

    /* Each is deleted, whatever is wrong with it. */
    tensor = NULL;
    deleted = 0;
    IS(SLIPRING_INVALID_TENSOR, slipring_tensor_from_dlpack(context, NULL, HANG, &tensor));
    managed = foreign();
    managed.version.major = 2;
    IS(SLIPRING_INVALID_TENSOR, slipring_tensor_from_dlpack(context, &managed, HANG, &tensor));
    managed = foreign();
    managed.dl_tensor.device.device_type = 2;
    IS(SLIPRING_INVALID_TENSOR, slipring_tensor_from_dlpack(context, &managed, HANG, &tensor));
    managed = foreign();
    managed.dl_tensor.strides = wrong;
    IS(SLIPRING_INVALID_TENSOR, slipring_tensor_from_dlpack(context, &managed, HANG, &tensor));
    managed = foreign();
    managed.dl_tensor.dtype.lanes = 4;
    IS(SLIPRING_INVALID_TENSOR, slipring_tensor_from_dlpack(context, &managed, HANG, &tensor));
    managed = foreign();
    managed.dl_tensor.ndim = -1;
    IS(SLIPRING_INVALID_TENSOR, slipring_tensor_from_dlpack(context, &managed, HANG, &tensor));
    managed = foreign();
    managed.dl_tensor.dtype = (DLDataType){6, 8, 1};
    IS(SLIPRING_INVALID_TENSOR, slipring_tensor_from_dlpack(context, &managed, HANG, &tensor));
    managed = foreign();
    IS(SLIPRING_INVALID_HANDLE, slipring_tensor_from_dlpack(NULL, &managed, HANG, &tensor));
    managed = foreign();
    IS(SLIPRING_INVALID_ARGUMENT, slipring_tensor_from_dlpack(context, &managed, HANG, NULL));
    CHECK(deleted == 8 && tensor == NULL);
}

static void they_go(slipring_context *context) {
    slipring_connection *near, *far;
    slipring_tensor *tensor;
    slipring_tensor_view view;
    slipring_stats stats;
    DLManagedTensorVersioned *managed;
    const size_t dims[3] = {2, 3, 4};
    OK(slipring_pair(context, &near, &far));
    for (int is_lent = 0; is_lent < 2; is_lent++) {
        OK(slipring_tensor_new(context, SLIPRING_DTYPE_INT16, dims, 3, 0, HANG, &tensor));
        OK(slipring_tensor_get_view(tensor, &view, sizeof view));
        fill(view.data, view.len);
        if (is_lent) {
            OK(slipring_send_tensor(near, tensor, HANG));
            OK(slipring_recv_tensor(far, HANG, &tensor));
        }
        OK(slipring_tensor_to_dlpack(tensor, &managed));
        IS(SLIPRING_INVALID_HANDLE, slipring_tensor_free(tensor));
        CHECK(managed->version.major == 1 && managed->flags == 1);
        CHECK(managed->dl_tensor.device.device_type == 1 && managed->dl_tensor.ndim == 3);
        CHECK(managed->dl_tensor.dtype.code == 0 && managed->dl_tensor.dtype.bits == 16);
        CHECK(managed->dl_tensor.shape[2] == 4 && managed->dl_tensor.strides[0] == 12);
        CHECK(managed->dl_tensor.byte_offset == 0 && is_filled(managed->dl_tensor.data, 48));
        OK(slipring_connection_get_stats(far, &stats, sizeof stats));
        CHECK(stats.loans_held == (unsigned)is_lent);
        managed->deleter(managed);
        OK(slipring_connection_get_stats(far, &stats, sizeof stats));
        CHECK(stats.loans_held == 0);
    }
    /* What cannot go stays. */
    OK(slipring_tensor_new(context, SLIPRING_DTYPE_BOOL, dims, 1, SLIPRING_TENSOR_ZEROED, HANG, &tensor));
    OK(slipring_tensor_get_view(tensor, &view, sizeof view));
    ((char *)view.data)[1] = 2;
    IS(SLIPRING_INVALID_TENSOR, slipring_tensor_to_dlpack(tensor, &managed));
    OK(slipring_tensor_free(tensor));
    OK(slipring_tensor_new_encoded(context, 8, dims, 1, SLIPRING_TENSOR_ZEROED, HANG, &tensor));
    IS(SLIPRING_INVALID_TENSOR, slipring_tensor_to_dlpack(tensor, &managed));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_tensor_to_dlpack(tensor, NULL));
    OK(slipring_tensor_free(tensor));
    OK(slipring_connection_close(near));
    OK(slipring_connection_close(far));
}

int main(void) {
    slipring_context *context = patient();
    they_come(context);
    they_go(context);
    OK(slipring_context_free(context));
    return 0;
}
