//! Compares the demo's output with the excerpt in README.md, which is the first `text` code block. A line `...` stands
//! for any number of lines.

use anyhow::{Context as _, ensure};

/// Checks that the demo printed the lines of the excerpt, in the same order.
pub(super) fn check(readme: &str, printed: &[String]) -> anyhow::Result<()> {
    let (_, rest) =
        readme.split_once("```text\n").context("README.md has no ```text block with the output of the demo")?;
    let (excerpt, _) = rest.split_once("```").context("README.md: the code block of the demo is not closed")?;
    let (mut rest, mut may_skip) = (printed, true);
    for line in excerpt.lines() {
        if line.trim() == "..." {
            may_skip = true;
            continue;
        }
        let found = rest.iter().position(|printed| printed.trim_end() == line);
        let at = found.filter(|at| may_skip || *at == 0);
        ensure!(at.is_some(), "README.md contains a line that the demo does not print at this place: {line}");
        rest = &rest[at.map_or(0, |at| at + 1)..];
        may_skip = false;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excerpt_is_compared_with_output() {
        let printed = ["a", "b", "", "c", "d"].map(str::to_owned);
        let check = |excerpt: &str| check(&format!("x\n```text\n{excerpt}```\n"), &printed);
        for right in ["a\nb\n\nc\nd\n", "b\n...\nd\n", "c\n", "a\n...\nb\n"] {
            check(right).unwrap();
        }
        for wrong in ["a\nc\n", "c\n...\na\n", "e\n", "b\nc\n"] {
            assert!(check(wrong).is_err(), "{wrong}");
        }
    }
}
