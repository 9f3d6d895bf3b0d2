"""The highest elements of an output, as each of Triton's clients asks for them."""

import numpy as np

from refusals import refused


def classify(front, model, array, datatype, count):
    """Returns the classes of an identity's output."""
    tensor = front.module.InferInput("INPUT0", list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    output = front.module.InferRequestedOutput("OUTPUT0", class_count=count)
    return front.infer(model, [tensor], outputs=[output]).as_numpy("OUTPUT0")


def test_each_batch_item_has_its_highest_elements(front):
    values = np.array([[1, 2.5, -3], [0.125, 9, 4]], dtype=np.float32)
    found = classify(front, "identity_fp32", values, "FP32", 2)
    assert found.tolist() == [[b"2.500000:1", b"1.000000:0"], [b"9.000000:1", b"4.000000:2"]]
    values = np.array([[7, -8, 9]], dtype=np.int64)
    found = classify(front, "identity_int64", values, "INT64", 100)
    assert found.tolist() == [[b"9:2", b"7:0", b"-8:1"]]


def test_a_type_without_order_has_no_classes(front):
    text = "class result not available for output due to unsupported type 'FP16'"
    with refused(front, 400, "INVALID_ARGUMENT", text):
        classify(front, "identity_fp16", np.ones((1, 3), dtype=np.float16), "FP16", 1)
