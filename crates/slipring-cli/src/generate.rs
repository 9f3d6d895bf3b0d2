//! `slipring completions` and `slipring man`: what the definition of the commands tells shells and readers.

use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::failure::Failure;
use crate::output::Output;

/// The arguments of `slipring completions`.
#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

/// The arguments of `slipring man`.
#[derive(Debug, Args)]
pub(crate) struct ManPage {
    /// The command whose page to print. Default: the page of the program, which lists all commands
    command: Option<String>,
}

impl Completions {
    pub(crate) fn run(self, mut program: Command, output: Output) -> Result<(), Failure> {
        let name = program.get_name().to_owned();
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut program, name, &mut script);
        output.write(&script)
    }
}

impl ManPage {
    pub(crate) fn run(self, mut program: Command, output: Output) -> Result<(), Failure> {
        program.build();
        let described = match &self.command {
            None => program,
            Some(name) => {
                let command = program.find_subcommand(name).cloned();
                let command = command.ok_or_else(|| {
                    let name = name.escape_debug();
                    Failure::new(format!("no command {name}: slipring --help lists all"))
                })?;
                command.version(env!("CARGO_PKG_VERSION"))
            }
        };
        let mut page = Vec::new();
        Man::new(described).render(&mut page)?;
        output.write(&page)
    }
}
