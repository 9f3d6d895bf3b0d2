//! `../echo.proto` → `../echo.rs`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let files = protox::compile(["echo.proto"], [folder])?;
    tonic_prost_build::configure().out_dir(folder).bytes(".").compile_fds(files)?;
    Ok(())
}
