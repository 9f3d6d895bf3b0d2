//! GPUs, as far as files show them: no library is loaded.

use std::fs;
use std::path::Path;

use crate::doctor::finding::Finding;

/// The folders in which distributions and container runtimes put the driver's library.
const LIBRARIES: [&str; 7] = [
    "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
    "/usr/lib/aarch64-linux-gnu/libcuda.so.1",
    "/usr/lib64/libcuda.so.1",
    "/usr/lib/libcuda.so.1",
    "/usr/local/cuda/compat/libcuda.so.1",
    "/usr/lib/wsl/lib/libcuda.so.1",
    "/run/opengl-driver/lib/libcuda.so.1",
];

/// Looks for GPUs of NVIDIA.
pub(super) fn findings() -> Vec<Finding> {
    let devices = fs::read_dir("/dev").into_iter().flatten().flatten().filter(|entry| {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("nvidia"));
        number.is_some_and(|number| number.parse::<u32>().is_ok())
    });
    let (devices, library) = (devices.count(), LIBRARIES.iter().find(|at| Path::new(at).exists()));
    let finding = match (devices, library) {
        (0, None) => Finding::ok("GPU", "none; tensors in the processor's memory need none"),
        (0, Some(library)) => Finding::note(
            "GPU",
            format!("{library} is there, and no /dev/nvidia0"),
            "in a container, pass the devices (docker --gpus all); else load the driver (nvidia-smi)",
        ),
        (count, None) => Finding::note(
            "GPU",
            format!("{count} devices, and no libcuda.so.1 where it usually lies"),
            "install the driver's libraries, or pass them to the container (NVIDIA_DRIVER_CAPABILITIES=compute)",
        ),
        (count, Some(library)) if !Path::new("/dev/nvidiactl").exists() => Finding::note(
            "GPU",
            format!("{count} devices and {library}, and no /dev/nvidiactl"),
            "pass it to the container, too",
        ),
        (count, Some(library)) => Finding::ok(
            "GPU",
            format!("{count} devices, with {library}; whether CUDA works is not tried"),
        ),
    };
    vec![finding]
}
