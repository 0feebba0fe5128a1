//! The screen of `top`: stores readings, handles keys, and draws.

use std::cmp::Ordering;

use clap::ValueEnum;
use executor_cli_kit::text::plain;
use executor_cli_kit::view::quantity::bytes;
use executor_cli_kit::view::style::{Role, Style};
use executor_client::v1::{ContainerStats, InfoResponse, Usage};

use crate::view::stats;

/// Number of lines that show no containers: the node, the keys or the filter, the heading, and a message.
const LINES: usize = 4;
/// Maximum length of the filter, in characters.
const FILTER_MAX: usize = 128;
const KEYS: &str = "keys: c cpu  m memory  p pids  n network  d disk  i id  r reverse  / filter  arrows scroll  q quit";

/// Column to sort by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sort {
    /// Share of the processors
    Cpu,
    /// Memory without inactive page cache
    Memory,
    /// Processes and threads
    Pids,
    /// Bytes received and sent
    Network,
    /// Bytes read and written
    Disk,
    /// Id
    Id,
}

impl Sort {
    fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Network => "network",
            Self::Disk => "disk",
            Self::Id => "id",
        }
    }

    fn value(self, usage: &Usage, before: Option<&Usage>) -> i128 {
        let sum = |one: u64, other: u64| i128::from(one) + i128::from(other);
        match self {
            Self::Cpu => before.and_then(|before| stats::share(usage, before)).unwrap_or(-1),
            Self::Memory => usage.memory.map_or(-1, |memory| memory.working_set_bytes.into()),
            Self::Pids => usage.pids.map_or(-1, |pids| pids.current.into()),
            Self::Network => usage.network.map_or(-1, |network| sum(network.received_bytes, network.sent_bytes)),
            Self::Disk => usage.io.map_or(-1, |io| sum(io.read_bytes, io.written_bytes)),
            Self::Id => 0,
        }
    }
}

/// Action that the caller must take after a key press.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyAction {
    /// The screen must be redrawn.
    Redraw,
    Quit,
}

pub(crate) struct Screen {
    sort: Sort,
    reverse: bool,
    filter: String,
    /// True while the filter is being typed.
    typing: bool,
    /// Number of containers scrolled off the top.
    scrolled: usize,
    /// Number of containers that fit on the screen, as of the last draw.
    fits: usize,
    readings: Vec<ContainerStats>,
    before: Vec<ContainerStats>,
    node: Option<InfoResponse>,
    message: String,
}

impl Screen {
    pub(crate) fn new(sort: Sort, reverse: bool, filter: String) -> Self {
        Self {
            sort,
            reverse,
            filter,
            typing: false,
            scrolled: 0,
            fits: 1,
            readings: Vec::new(),
            before: Vec::new(),
            node: None,
            message: String::new(),
        }
    }

    /// Sets the current reading; the old reading becomes the previous reading.
    pub(crate) fn set_readings(&mut self, readings: Vec<ContainerStats>) {
        self.before = std::mem::replace(&mut self.readings, readings);
    }

    /// Sets the node's state; `None` keeps the old state.
    pub(crate) fn set_node(&mut self, info: Option<InfoResponse>) {
        self.node = info.or_else(|| self.node.take());
    }

    /// Sets the message on the last line.
    pub(crate) fn set_message(&mut self, message: String) {
        self.message = message;
    }

    /// Handles pressed keys.
    pub(crate) fn press(&mut self, typed: &[u8]) -> KeyAction {
        let mut keys = typed;
        while let Some((key, rest)) = keys.split_first() {
            // Arrow keys and similar are sequences of three or four bytes that arrive together.
            let (page, sequences) = (self.fits.max(1), keys);
            let scroll: Option<(isize, usize)> = match sequences {
                [0x1b, b'[' | b'O', b'A', ..] => Some((-1, 3)),
                [0x1b, b'[' | b'O', b'B', ..] => Some((1, 3)),
                [0x1b, b'[', b'5', b'~', ..] => Some((-(page as isize), 4)),
                [0x1b, b'[', b'6', b'~', ..] => Some((page as isize, 4)),
                _ => None,
            };
            if let Some((by, length)) = scroll {
                self.scrolled = self.scrolled.saturating_add_signed(by);
                keys = &keys[length..];
                continue;
            }
            keys = rest;
            match (*key, self.typing) {
                (0x03, _) => return KeyAction::Quit,
                (b'\r' | b'\n', true) => self.typing = false,
                (0x1b, true) => (self.typing, self.filter) = (false, String::new()),
                (0x7f | 0x08, true) => drop(self.filter.pop()),
                (b' '..=b'~', true) if self.filter.len() < FILTER_MAX => self.filter.push(char::from(*key)),
                (_, true) => {}
                (b'q', false) => return KeyAction::Quit,
                (b'/', false) => self.typing = true,
                (b'r', false) => self.reverse = !self.reverse,
                (b'j', false) => self.scrolled = self.scrolled.saturating_add(1),
                (b'k', false) => self.scrolled = self.scrolled.saturating_sub(1),
                (b'c', false) => self.sort_by(Sort::Cpu),
                (b'm', false) => self.sort_by(Sort::Memory),
                (b'p', false) => self.sort_by(Sort::Pids),
                (b'n', false) => self.sort_by(Sort::Network),
                (b'd', false) => self.sort_by(Sort::Disk),
                (b'i', false) => self.sort_by(Sort::Id),
                (_, false) => {}
            }
        }
        KeyAction::Redraw
    }

    fn sort_by(&mut self, sort: Sort) {
        (self.sort, self.reverse, self.scrolled) = (sort, false, 0);
    }

    /// Returns the sorted containers that match the filter, and the previous reading.
    pub(crate) fn shown(&self) -> (Vec<ContainerStats>, &[ContainerStats]) {
        let before = |id: &str| self.before.iter().find(|last| last.id == id).and_then(|last| last.usage.as_ref());
        let value =
            |one: &ContainerStats| one.usage.as_ref().map_or(-2, |usage| self.sort.value(usage, before(&one.id)));
        let matching = self.readings.iter().filter(|one| one.id.contains(&self.filter));
        let mut shown: Vec<(i128, ContainerStats)> = matching.map(|one| (value(one), one.clone())).collect();
        shown.sort_by(|(one_value, one), (other_value, other)| {
            let order = other_value.cmp(one_value);
            let order = if self.sort == Sort::Id { Ordering::Equal } else { order };
            let order = order.then_with(|| one.id.cmp(&other.id));
            if self.reverse { order.reverse() } else { order }
        });
        (shown.into_iter().map(|(_, one)| one).collect(), &self.before)
    }

    /// Draws the screen on a terminal of this size.
    pub(crate) fn draw(&mut self, rows: usize, columns: usize, style: Style) -> String {
        let (shown, before) = self.shown();
        let table = stats::table(&shown, before, style);
        self.fits = rows.saturating_sub(LINES).max(1);
        let last = shown.len().saturating_sub(self.fits);
        self.scrolled = self.scrolled.min(last);
        let mut lines = vec![style.paint(Role::Heading, &self.headline(shown.len())), self.second_line(style)];
        let mut table = table.lines();
        lines.extend(table.next().map(str::to_owned));
        lines.extend(table.skip(self.scrolled).take(self.fits).map(str::to_owned));
        lines.truncate(rows.saturating_sub(1));
        if !self.message.is_empty() {
            lines.push(style.paint(Role::Attention, &plain(&self.message)));
        }
        let mut text = String::from("\u{1b}[H");
        for (index, line) in lines.iter().take(rows).enumerate() {
            if index > 0 {
                text.push_str("\r\n");
            }
            text.push_str(&cut(line, columns));
            text.push_str("\u{1b}[K");
        }
        text.push_str("\u{1b}[J");
        text
    }

    fn headline(&self, shown: usize) -> String {
        let mut line = format!("{shown} of {} containers", self.readings.len());
        if let Some(node) = &self.node {
            if let (Some(total), Some(left)) = (&node.total, &node.remaining) {
                let held = total.memory_bytes.saturating_sub(left.memory_bytes);
                line.push_str(&format!(", memory {} of {} allocated", bytes(held), bytes(total.memory_bytes)));
            }
            if !node.launcher_connected {
                line.push_str(", no launcher");
            }
        }
        let order = if self.reverse { ", reversed" } else { "" };
        line + &format!(", by {}{order}", self.sort.name())
    }

    fn second_line(&self, style: Style) -> String {
        if self.typing {
            return format!("filter: {}_", self.filter);
        }
        if self.filter.is_empty() {
            return style.paint(Role::Faint, KEYS);
        }
        format!("filter: {}   (/ to change it, Escape there to clear it)", plain(&self.filter))
    }
}

/// Truncates a line to a width. Colours do not count toward the width, and are reset at the end of the line.
fn cut(line: &str, columns: usize) -> String {
    let (mut text, mut width) = (String::with_capacity(line.len()), 0);
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        if character == '\u{1b}' {
            text.push(character);
            for part in characters.by_ref() {
                text.push(part);
                if part.is_ascii_alphabetic() {
                    break;
                }
            }
        } else if width < columns {
            text.push(character);
            width += 1;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use executor_client::v1::{MemoryUsage, PidsUsage};

    use super::*;

    fn reading(id: &str, memory: u64, pids: u64) -> ContainerStats {
        let usage = Usage {
            memory: Some(MemoryUsage { working_set_bytes: memory, ..MemoryUsage::default() }),
            pids: Some(PidsUsage { current: pids }),
            ..Usage::default()
        };
        ContainerStats { id: id.into(), usage: Some(usage), ..ContainerStats::default() }
    }

    fn screen() -> Screen {
        let mut screen = Screen::new(Sort::Memory, false, String::new());
        screen.set_readings(vec![reading("web-1", 10, 3), reading("web-2", 30, 1), reading("db", 20, 2)]);
        screen
    }

    fn ids(screen: &Screen) -> Vec<String> {
        screen.shown().0.into_iter().map(|one| one.id).collect()
    }

    #[test]
    fn keys_sort_and_filter() {
        let mut screen = screen();
        assert_eq!(ids(&screen), ["web-2", "db", "web-1"]);
        for (keys, expected) in [
            (&b"p"[..], &["web-1", "db", "web-2"][..]),
            (b"r", &["web-2", "db", "web-1"]),
            (b"i", &["db", "web-1", "web-2"]),
            (b"/we", &["web-1", "web-2"]),
            (b"bx", &[]),
            (b"\x7f-2\r", &["web-2"]),
            (b"/\x1b", &["db", "web-1", "web-2"]),
            (b"/q\x7f\r", &["db", "web-1", "web-2"]),
        ] {
            assert_eq!(screen.press(keys), KeyAction::Redraw);
            assert_eq!(ids(&screen), expected, "{keys:?}");
        }
        assert_eq!(screen.press(b"q"), KeyAction::Quit);
        assert_eq!(screen.press(b"/\x03"), KeyAction::Quit);
    }

    /// At every terminal size, no line is too wide and the number of lines is not too large.
    #[test]
    fn screen_fits_every_terminal_size() {
        let mut screen = screen();
        screen.set_message("a message".into());
        for style in [Style::PLAIN, Style::COLOURED] {
            for (rows, columns) in [(1, 1), (2, 10), (4, 20), (5, 300), (24, 80)] {
                screen.press(b"jjjjjjj");
                let text = screen.draw(rows, columns, style);
                let lines: Vec<&str> = text.split("\r\n").collect();
                assert!(lines.len() <= rows, "{rows} rows: {text:?}");
                for line in lines {
                    let mut width = 0;
                    let mut characters = line.chars();
                    while let Some(character) = characters.next() {
                        match character {
                            '\u{1b}' => drop(characters.find(char::is_ascii_alphabetic)),
                            _ => width += 1,
                        }
                    }
                    assert!(width <= columns, "{columns} columns: {line:?}");
                }
            }
        }
        let text = screen.draw(24, 200, Style::PLAIN);
        assert!(text.contains("3 of 3 containers, by memory") && text.contains("a message"), "{text:?}");
        screen.press(b"k\x1b[A\x1b[5~");
        let text = screen.draw(5, 200, Style::PLAIN);
        assert!(text.contains("web-2") && !text.contains("web-1"), "{text:?}");
        screen.press(b"\x1b[6~\x1b[B");
        let text = screen.draw(5, 200, Style::PLAIN);
        assert!(text.contains("web-1") && !text.contains("web-2"), "{text:?}");
    }
}
