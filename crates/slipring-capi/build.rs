//! Has the shared library bring its unwinder along, so that it needs libc alone. No panic and no exception passes from it to a
//! caller or back, so nothing has to be shared.

use std::path::PathBuf;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    println!("cargo:rerun-if-changed=build.rs");
    if env::var_os("CARGO_CFG_TARGET_ENV").is_some_and(|env| env == "gnu") {
        // The standard library asks for libgcc_s. The linker finds this text first, and takes what it names.
        let folder = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
        fs::write(folder.join("libgcc_s.so"), "INPUT(-lgcc_eh -lgcc)\n")?;
        println!("cargo:rustc-link-search=native={}", folder.display());
    }
    Ok(())
}
