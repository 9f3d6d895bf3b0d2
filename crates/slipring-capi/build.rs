//! Has the shared library bring its unwinder along, so that it needs libc alone. No panic and no exception passes from it to a
//! caller or back, so nothing has to be shared.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    println!("cargo:rerun-if-changed=build.rs");
    let is_native = env::var_os("HOST") == env::var_os("TARGET");
    let is_gnu = env::var_os("CARGO_CFG_TARGET_ENV").is_some_and(|env| env == "gnu");
    if is_native && is_gnu && has_unwinder() {
        // The standard library asks for libgcc_s. The linker finds this text first, and takes what it names.
        let folder = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
        fs::write(folder.join("libgcc_s.so"), "INPUT(-lgcc_eh -lgcc)\n")?;
        println!("cargo:rustc-link-search=native={}", folder.display());
    }
    Ok(())
}

/// Returns whether the compiler that links has the unwinder as a static library.
fn has_unwinder() -> bool {
    let asked = Command::new("cc").arg("-print-file-name=libgcc_eh.a").output();
    asked.is_ok_and(|answer| {
        let path = String::from_utf8_lossy(&answer.stdout);
        Path::new(path.trim()).is_absolute() && Path::new(path.trim()).exists()
    })
}
