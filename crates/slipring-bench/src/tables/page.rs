//! Pages whose tables are marked.

use std::path::Path;

use super::request::Request;
use super::table;
use crate::Outcome;

const START: &str = "<!-- table: ";
const START_END: &str = " -->";
const END: &str = "<!-- end -->";

/// Returns a table between its marks.
pub fn block(request: &str, table: &str) -> String {
    format!("{START}{request}{START_END}\n{table}{END}\n")
}

/// Makes the marked tables of a page of their files, and writes the page.
pub fn write(path: &Path) -> Outcome<()> {
    let (old, new) = read(path)?;
    if old == new {
        return Ok(());
    }
    std::fs::write(path, new).map_err(|error| format!("{}: {error}", path.display()).into())
}

/// Returns the number of marked tables of a page, or an error that names the first line in which a table differs from
/// its files.
pub fn check(path: &Path) -> Outcome<usize> {
    let (old, new) = read(path)?;
    let (mut olds, mut news) = (old.lines(), new.lines());
    for number in 1.. {
        match (olds.next(), news.next()) {
            (None, None) => break,
            (old, new) if old == new => {}
            (old, new) => {
                return Err(format!(
                    "{}:{number}: the page says\n  {}\nand its file gives\n  {}",
                    path.display(),
                    old.unwrap_or_default(),
                    new.unwrap_or_default()
                )
                .into());
            }
        }
    }
    Ok(old.lines().filter(|line| line.starts_with(START)).count())
}

/// Returns the page as it is, and as it should be.
fn read(path: &Path) -> Outcome<(String, String)> {
    let page =
        std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let made = made(&page, |request| table(&Request::parse(request)?))
        .map_err(|error| format!("{}:{error}", path.display()))?;
    Ok((page, made))
}

/// Replaces the lines between marks by what `table` returns for the request.
fn made(page: &str, table: impl Fn(&str) -> Outcome<String>) -> Outcome<String> {
    let mut made = String::with_capacity(page.len());
    let mut lines = page.lines().zip(1..);
    while let Some((line, number)) = lines.next() {
        let Some(request) = line.strip_prefix(START) else {
            made += line;
            made.push('\n');
            continue;
        };
        let request = request
            .strip_suffix(START_END)
            .ok_or_else(|| format!("{number}: the mark does not end in {START_END:?}"))?;
        let table = table(request).map_err(|error| format!("{number}: {error}"))?;
        made += &block(request, &table);
        if !lines.any(|(line, _)| line == END) {
            return Err(format!("{number}: no {END} follows").into());
        }
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "one\n<!-- table: floors a.csv -->\nold\n<!-- end -->\ntwo\n";

    #[test]
    fn a_marked_table_is_replaced_and_the_rest_stays() {
        let made = made(PAGE, |request| Ok(format!("{request}\n"))).unwrap();
        assert_eq!(made, PAGE.replace("old", "floors a.csv"));
    }

    #[test]
    fn a_mark_without_an_end_is_an_error() {
        let page = PAGE.replace(END, "");
        let error = made(&page, |_| Ok(String::new())).unwrap_err().to_string();
        assert_eq!(error, "2: no <!-- end --> follows");
    }
}
