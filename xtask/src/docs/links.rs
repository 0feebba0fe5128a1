//! Finds links and headings in Markdown pages.

use std::collections::BTreeMap;
use std::ops::Range;

/// A link of a page.
pub(super) struct Link<'a> {
    /// Range of the whole link, from `[` to `)`.
    pub(super) range: Range<usize>,
    pub(super) text: &'a str,
    /// Path, without the heading; empty for a heading of the same page.
    pub(super) path: &'a str,
    pub(super) heading: Option<&'a str>,
}

/// Returns the links of a page to files and headings. Ignores links to the web and text in code.
pub(super) fn links(page: &str) -> Vec<Link<'_>> {
    let code = code(page);
    let mut found = Vec::new();
    for (middle, _) in page.match_indices("](") {
        let Some(start) = page[..middle].rfind('[') else { continue };
        let Some(length) = page[middle..].find(')') else { continue };
        let range = start..middle + length + 1;
        let target = &page[middle + 2..middle + length];
        let is_elsewhere =
            target.contains("://") || target.starts_with("mailto:") || target.contains(char::is_whitespace);
        if is_elsewhere || code.iter().any(|code| code.contains(&middle)) {
            continue;
        }
        let (path, heading) = target.split_once('#').map_or((target, None), |(path, heading)| (path, Some(heading)));
        found.push(Link { range, text: &page[start + 1..middle], path, heading });
    }
    found
}

/// Returns the ranges of fenced and inline code.
fn code(page: &str) -> Vec<Range<usize>> {
    let (mut ranges, mut fence, mut at) = (Vec::new(), None, 0);
    for line in page.split_inclusive('\n') {
        let is_fence = line.trim_start().starts_with("```");
        match fence {
            None if is_fence => fence = Some(at),
            Some(start) if is_fence => {
                ranges.push(start..at + line.len());
                fence = None;
            }
            Some(_) => {}
            None => {
                let ticks: Vec<usize> = line.match_indices('`').map(|(tick, _)| at + tick).collect();
                ranges.extend(ticks.chunks_exact(2).map(|pair| pair[0]..pair[1]));
            }
        }
        at += line.len();
    }
    ranges
}

/// Returns the anchors of a page's headings, as mdBook names them: lower case, spaces replaced with hyphens, other
/// punctuation removed. If an anchor occurs again, a number is appended.
pub(super) fn anchors(page: &str) -> Vec<String> {
    let (mut found, mut seen, mut in_code) = (Vec::new(), BTreeMap::new(), false);
    for line in page.lines() {
        in_code ^= line.trim_start().starts_with("```");
        let Some(heading) = Some(line).filter(|_| !in_code).and_then(|line| line.strip_prefix('#')) else { continue };
        let mut anchor = String::new();
        for c in heading.trim_start_matches('#').trim().chars() {
            match c {
                ' ' => anchor.push('-'),
                c if c.is_alphanumeric() || c == '-' || c == '_' => anchor.extend(c.to_lowercase()),
                _ => {}
            }
        }
        let count: &mut u32 = seen.entry(anchor.clone()).or_default();
        found.push(if *count == 0 { anchor } else { format!("{anchor}-{count}") });
        *count += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_in_code_are_skipped() {
        let page = "[a](b.md#c) `[x](y.md)` [w](https://x.y)\n```\n[z](z.md)\n```\n[d](#e)";
        let found: Vec<_> = links(page).iter().map(|link| (link.text, link.path, link.heading)).collect();
        assert_eq!(found, [("a", "b.md", Some("c")), ("d", "", Some("e"))]);
    }

    #[test]
    fn anchors_follow_mdbook() {
        assert_eq!(
            anchors("# The `run` call\n## [warm_pool]\n## A, b\n```\n# no\n```\n# A b\n"),
            ["the-run-call", "warm_pool", "a-b", "a-b-1"]
        );
    }
}
