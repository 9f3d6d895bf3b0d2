//! `proto/*.proto` → `src/triton/grpc/generated/*.rs`, formatted as the rest of the crate.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// A proto file, the package that the generator names its output by, and the name that it has here.
const FILES: [(&str, &str, &str); 2] =
    [("inference.proto", "inference", "inference"), ("health.proto", "grpc.health.v1", "health")];

/// Tensors: they are cut out of a message, and never copied.
const BYTES: [&str; 2] = [
    ".inference.ModelInferRequest.raw_input_contents",
    ".inference.ModelInferResponse.raw_output_contents",
];

fn main() -> Result<(), Box<dyn Error>> {
    let check = env::args().skip(1).any(|argument| argument == "--check");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
    let out = root.join("src/triton/grpc/generated");
    let scratch = env::temp_dir().join(format!("generate-{}", std::process::id()));
    fs::create_dir_all(&scratch)?;
    let made = generate(&root, &scratch);
    let differs = made.and_then(|files| place(files, &out, check));
    fs::remove_dir_all(&scratch)?;
    match differs? {
        names if names.is_empty() => Ok(()),
        names => Err(format!("not what the protos give: {}", names.join(", ")).into()),
    }
}

/// Files in `scratch`, and the names that they get.
fn generate(root: &Path, scratch: &Path) -> Result<Vec<(PathBuf, String)>, Box<dyn Error>> {
    let mut made = Vec::new();
    for (proto, package, name) in FILES {
        let files = protox::compile([proto], [root.join("proto")])?;
        let mut config = prost_build::Config::new();
        config.bytes(BYTES);
        // A map of one or two entries is a short tree, and is asked in no time.
        config.btree_map(["."]);
        tonic_prost_build::configure()
            .out_dir(scratch)
            // Connecting is the business of who has a client.
            .build_transport(false)
            .compile_fds_with_config(files, config)?;
        let file = scratch.join(format!("{package}.rs"));
        let formatted = Command::new("rustfmt")
            .args(["--edition", "2024", "--config-path"])
            .arg(root)
            .arg(&file)
            .status()?;
        if !formatted.success() {
            return Err("rustfmt failed".into());
        }
        made.push((file, format!("{name}.rs")));
    }
    Ok(made)
}

/// Puts the files where they belong, or tells which are not as they should be.
fn place(
    files: Vec<(PathBuf, String)>,
    out: &Path,
    check: bool,
) -> Result<Vec<String>, Box<dyn Error>> {
    let mut differing = Vec::new();
    for (file, name) in files {
        let fresh = fs::read(file)?;
        let target = out.join(&name);
        if check && fs::read(&target)? != fresh {
            differing.push(name);
        } else if !check {
            fs::create_dir_all(out)?;
            fs::write(target, fresh)?;
        }
    }
    Ok(differing)
}
