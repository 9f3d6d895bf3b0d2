//! The table of what bounds a peer beside the accounts.

use crate::Outcome;
use crate::tables::markdown::Markdown;

/// Returns the table of `slipring::seam::bounds`.
pub fn table() -> Outcome<String> {
    let mut table = Markdown::new(["resource", "bound", "default"]);
    for row in slipring::seam::bounds() {
        table.push(vec![row.resource, row.bound, row.default]);
    }
    table.lines()
}
