//! `slipring doctor`: what the machine lets slipring do, and who refuses whom.
//!
//! | file | looks at |
//! |---|---|
//! | `kernel` | features, which are tried |
//! | `limits` | limits of the process and the system |
//! | `sandbox` | filters, namespaces, the memory cgroup |
//! | `gpu` | files of GPUs |
//! | `handshake` | the listener on an address |
//! | `sockets` | listeners in other network namespaces |

mod finding;
mod gpu;
mod handshake;
mod kernel;
mod limits;
mod sandbox;
mod sockets;

use std::time::Duration;

use clap::Args;
use slipring::Address;

use crate::failure::Failure;
use crate::output::Output;
use crate::quantity;

/// The arguments of `slipring doctor`.
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// An address, with whose listener a handshake is tried
    address: Option<Address>,
    /// How long the listener may take to answer
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = quantity::duration)]
    timeout: Duration,
}

impl Doctor {
    /// Prints all findings.
    ///
    /// # Errors
    ///
    /// There is a problem. The exit code is that of the handshake, if it is one.
    pub(crate) fn run(self, output: Output) -> Result<(), Failure> {
        let mut problems = 0;
        let mut code = 1;
        let parts = [kernel::findings, limits::findings, sandbox::findings, gpu::findings];
        for finding in parts.into_iter().flat_map(|part| part()) {
            problems += usize::from(finding.is_problem());
            output.show(&finding)?;
        }
        if let Some(address) = &self.address {
            let (finding, failed) = handshake::probe(address, self.timeout);
            if finding.is_problem() {
                problems += 1;
                code = failed;
            }
            output.show(&finding)?;
        }
        if problems > 0 {
            return Err(Failure::with_code(code, format!("problems: {problems}")));
        }
        Ok(())
    }
}
