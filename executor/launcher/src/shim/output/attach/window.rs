//! Keeps the newest output for clients that have not received it yet. Each client has its own position in the output.
//!
//! A position is the number of bytes that the process has written before it, to both streams together. All processes
//! that count positions get the same number, so a client can resume at its position after its connection broke.

use std::collections::VecDeque;

use executor_core::protocol::{ATTACHED_PACKET_MAX, FromShim};

/// Assumed overhead of a packet, in bytes. The overhead counts towards the limits on kept output, so that these limits
/// also bound the memory for a process that writes single bytes to both streams alternately.
const PACKET_COST: u64 = 64;

#[derive(Default)]
pub(super) struct Window {
    packets: VecDeque<Packet>,
    end: u64,
}

/// Bytes of one stream as they are sent, preceded by the mark of the stream.
struct Packet {
    /// Position in the output of the packet's first byte.
    at: u64,
    bytes: Vec<u8>,
}

impl Packet {
    fn end(&self) -> u64 {
        self.at + self.bytes.len() as u64 - 1
    }
}

impl Window {
    /// Returns the position after all output.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Returns the first position that is kept.
    pub(super) fn start(&self) -> u64 {
        self.packets.front().map_or(self.end, |packet| packet.at)
    }

    /// Adds output at the end of the window.
    pub(super) fn push(&mut self, mark: FromShim, mut bytes: &[u8]) {
        if let Some(last) = self.packets.back_mut().filter(|last| last.bytes[0] == mark as u8) {
            let (fits, rest) = bytes.split_at(bytes.len().min(ATTACHED_PACKET_MAX - last.bytes.len()));
            last.bytes.extend_from_slice(fits);
            self.end += fits.len() as u64;
            bytes = rest;
        }
        for chunk in bytes.chunks(ATTACHED_PACKET_MAX - 1) {
            self.packets.push_back(Packet { at: self.end, bytes: [&[mark as u8], chunk].concat() });
            self.end += chunk.len() as u64;
        }
    }

    /// Advances the position past output that is not kept.
    pub(super) fn pass(&mut self, bytes: &[u8]) {
        debug_assert!(self.packets.is_empty());
        self.end += bytes.len() as u64;
    }

    /// Returns the packet from a position on, with the mark of the stream, and the number of output bytes in the
    /// packet. Output at this position must still be kept.
    pub(super) fn packet(&self, place: u64) -> Option<(std::borrow::Cow<'_, [u8]>, u64)> {
        let packet = self.packets.get(self.index(place))?;
        let passed = place.saturating_sub(packet.at) as usize;
        let length = packet.end() - packet.at - passed as u64;
        if passed == 0 {
            return Some((packet.bytes.as_slice().into(), length));
        }
        Some(([&packet.bytes[..1], &packet.bytes[1 + passed..]].concat().into(), length))
    }

    /// Returns the bytes of all output from `place` on, plus [`PACKET_COST`] for each packet.
    pub(super) fn cost_from(&self, place: u64) -> u64 {
        let packets = self.packets.len() - self.index(place);
        self.end.saturating_sub(place.max(self.start())) + packets as u64 * PACKET_COST
    }

    /// Drops output before the position `place`.
    pub(super) fn drop_before(&mut self, place: u64) {
        while self.packets.front().is_some_and(|packet| packet.end() <= place) {
            self.packets.pop_front();
        }
        if self.packets.is_empty() && self.packets.capacity() > 0 {
            self.packets = VecDeque::new(); // a shim whose container is silent holds no buffer
        }
    }

    /// Drops the oldest packets that end at or before position `place`, until the kept packets cost at most `cost_max`
    /// bytes ([`Self::cost_from`]).
    pub(super) fn shrink(&mut self, cost_max: u64, place: u64) {
        let mut cost = self.cost_from(self.start());
        while let Some(first) = self.packets.front().filter(|first| cost > cost_max && first.end() <= place) {
            cost -= first.end() - first.at + PACKET_COST;
            self.packets.pop_front();
        }
    }

    fn index(&self, place: u64) -> usize {
        self.packets.partition_point(|packet| packet.end() <= place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(window: &Window, mut place: u64) -> Vec<u8> {
        let mut all = Vec::new();
        while let Some((packet, length)) = window.packet(place) {
            assert_eq!(packet.len() as u64, length + 1);
            all.extend_from_slice(&packet[1..]);
            place += length;
        }
        assert_eq!(place, window.end());
        all
    }

    /// Regardless of how output was pushed, reading from any kept position returns all output after it.
    #[test]
    fn window_returns_output_after_any_position() {
        let (mut window, mut all) = (Window::default(), Vec::new());
        for round in 0..200usize {
            let mark = if round % 3 == 0 { FromShim::Stderr } else { FromShim::Stdout };
            let bytes: Vec<u8> = (0..round * round % 977).map(|n| (n + round) as u8).collect();
            window.push(mark, &bytes);
            all.extend(bytes);
        }
        assert_eq!((window.start(), window.end()), (0, all.len() as u64));
        for place in (0..all.len()).step_by(61) {
            assert_eq!(read(&window, place as u64), all[place..]);
        }
        window.drop_before(5000);
        assert!(window.start() <= 5000 && window.start() + ATTACHED_PACKET_MAX as u64 > 5000);
        assert_eq!(read(&window, 5000), all[5000..]);
        window.shrink(10_000, 5000);
        assert_eq!(read(&window, 5000), all[5000..], "output that is still needed is kept");
        window.shrink(10_000, window.end());
        assert!(window.cost_from(0) <= 10_000);
        window.drop_before(window.end());
        assert_eq!((window.start(), window.cost_from(0)), (window.end(), 0));
    }

    #[test]
    fn single_bytes_are_put_together_and_counted() {
        let mut window = Window::default();
        for _ in 0..1000 {
            window.push(FromShim::Stdout, b"x");
        }
        assert_eq!(window.packets.len(), 1);
        for _ in 0..1000 {
            window.push(FromShim::Stderr, b"e");
            window.push(FromShim::Stdout, b"o");
        }
        assert!(window.cost_from(0) > 2000 * PACKET_COST);
    }
}
