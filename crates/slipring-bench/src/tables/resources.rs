//! The table of what peers can make a process hold.

use slipring::options::Resource;

use crate::Outcome;
use crate::tables::markdown::Markdown;

/// Returns the table of `Resource::ALL`.
pub fn table() -> Outcome<String> {
    let head = ["resource", "`Resource`", "all peers together, by default", "over a limit"];
    let mut table = Markdown::new(head);
    for resource in Resource::ALL {
        table.push(vec![
            resource.name().to_owned(),
            format!("`{resource:?}`"),
            resource.default_text().to_owned(),
            resource.answer().to_owned(),
        ]);
    }
    table.lines()
}
