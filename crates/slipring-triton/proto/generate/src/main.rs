//! Generates the service in `src/grpc/generated/` and its clients in `tests/served/` from `proto/*.proto`.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// A proto file, its package, and the name of the generated file.
const FILES: [(&str, &str, &str); 2] =
    [("inference.proto", "inference", "inference"), ("health.proto", "grpc.health.v1", "health")];

/// Fields of tensors and files. Their bytes are slices of the message.
const BYTES: [&str; 3] = [
    ".inference.ModelRepositoryParameter.bytes_param",
    ".inference.ModelInferRequest.raw_input_contents",
    ".inference.ModelInferResponse.raw_output_contents",
];

/// A target folder, whether it has the service or the client, and the codec, whose path is relative to a module inside
/// of the generated file.
const TARGETS: [(&str, bool, &str); 2] = [
    ("src/grpc/generated", true, "super::super::codec::SizeCheckingCodec"),
    ("tests/served", false, "tonic_prost::ProstCodec"),
];

fn main() -> Result<(), Box<dyn Error>> {
    let check = env::args().skip(1).any(|argument| argument == "--check");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
    let scratch = env::temp_dir().join(format!("generate-{}", std::process::id()));
    fs::create_dir_all(&scratch)?;
    let done = generate(&root, &scratch, check);
    fs::remove_dir_all(&scratch)?;
    match done? {
        names if names.is_empty() => Ok(()),
        names => Err(format!("not what the protos give: {}", names.join(", ")).into()),
    }
}

/// Generates every file in `scratch`, then places it. With `check` it returns the names of differing files.
fn generate(root: &Path, scratch: &Path, check: bool) -> Result<Vec<String>, Box<dyn Error>> {
    let mut differing = Vec::new();
    for (folder, is_service, codec) in TARGETS {
        for (proto, package, name) in FILES {
            let files = protox::compile([proto], [root.join("proto")])?;
            let mut config = prost_build::Config::new();
            config.bytes(BYTES);
            // A tree of one or two entries is short and fast.
            config.btree_map(["."]);
            tonic_prost_build::configure()
                .out_dir(scratch)
                .build_server(is_service)
                .build_client(!is_service)
                // The owner of a client connects it.
                .build_transport(false)
                .codec_path(codec)
                .compile_fds_with_config(files, config)?;
            let file = scratch.join(format!("{package}.rs"));
            format(root, &file)?;
            let target = root.join(folder).join(format!("{name}.rs"));
            if !place(&file, &target, check)? {
                differing.push(format!("{folder}/{name}.rs"));
            }
        }
    }
    Ok(differing)
}

fn format(root: &Path, file: &PathBuf) -> Result<(), Box<dyn Error>> {
    let mut command = Command::new("rustfmt");
    command.args(["--edition", "2024", "--config-path"]).arg(root.join("../..")).arg(file);
    if command.status()?.success() { Ok(()) } else { Err("rustfmt failed".into()) }
}

/// Places a file. With `check` it returns whether the file is up to date.
fn place(file: &Path, target: &Path, check: bool) -> Result<bool, Box<dyn Error>> {
    let fresh = fs::read(file)?;
    if check {
        return Ok(fs::read(target).is_ok_and(|is| is == fresh));
    }
    fs::create_dir_all(target.parent().ok_or("no folder")?)?;
    fs::write(target, fresh)?;
    Ok(true)
}
