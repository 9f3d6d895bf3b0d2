//! Makes `include/slipring.h` from the sources of the crate.

use std::error::Error;
use std::path::Path;
use std::{env, fs};

use cbindgen::{Builder, Config, DocumentationStyle, ExportConfig, Language, Style};

/// Types that no function names.
const UNNAMED: [&str; 4] =
    ["slipring_option", "slipring_peer_policy", "slipring_dtype", "slipring_subscriber_state"];

fn main() -> Result<(), Box<dyn Error>> {
    let check = env::args().skip(1).any(|argument| argument == "--check");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize()?;
    let manifest = fs::read_to_string(root.join("../../Cargo.toml"))?;
    let version = manifest.lines().find_map(|line| line.strip_prefix("version = \""));
    let version = version.and_then(|line| line.strip_suffix('"')).ok_or("no version")?;
    let mut header = Vec::new();
    let builder = Builder::new().with_config(config(&fs::read_to_string(root.join("generate/head.h"))?, version));
    // The modules follow.
    builder.with_src(root.join("src/lib.rs")).generate()?.write(&mut header);
    // The generator writes a negative number as it is, and an expression may have an operator before it.
    let header = String::from_utf8(header)?.replace(" -1\n", " (-1)\n").replace(" -2\n", " (-2)\n");
    let target = root.join("include/slipring.h");
    if !check {
        return Ok(fs::write(target, header)?);
    }
    if fs::read_to_string(target)? == header { Ok(()) } else { Err("include/slipring.h is not what src/ gives".into()) }
}

/// Returns how the header looks: `head` above what the sources give.
fn config(head: &str, version: &str) -> Config {
    let mut parts = version.split('.');
    let mut part = |name: &str| format!("#define SLIPRING_VERSION_{name} {}\n", parts.next().unwrap_or("0"));
    let versions = part("MAJOR") + &part("MINOR") + &part("PATCH");
    Config {
        language: Language::C,
        header: Some(head.trim_end().to_owned()),
        include_guard: Some("SLIPRING_H".into()),
        no_includes: true,
        sys_includes: vec!["stddef.h".into(), "stdint.h".into()],
        after_includes: Some(format!("\n{versions}")),
        cpp_compat: true,
        style: Style::Type,
        documentation_style: DocumentationStyle::C99,
        usize_is_size_t: true,
        line_length: 100,
        export: ExportConfig { include: UNNAMED.map(str::to_owned).to_vec(), ..ExportConfig::default() },
        ..Config::default()
    }
}
