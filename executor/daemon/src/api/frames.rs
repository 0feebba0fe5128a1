//! Where in a stream of HTTP/2 frames one is (RFC 9113, 4.1): told from their headers, whatever sizes the bytes come in.

/// Bytes of a client's first words.
pub(super) const PREFACE: usize = 24;
/// Bytes of a frame's header: length (3), type, flags, stream (4).
pub(super) const HEADER: usize = 9;

/// Type of a frame with a part of a body.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PUSH_PROMISE: u8 = 5;
const CONTINUATION: u8 = 9;
/// Flag: a header block ends with this frame.
const END_HEADERS: u8 = 4;

/// Follows one direction of a connection.
#[derive(Debug)]
pub(super) struct Frames {
    at: At,
    /// A header block goes on in the next frame: nothing may come between (RFC 9113, 4.3).
    in_headers: bool,
    /// The frame is one of DATA.
    in_data: bool,
    data: u64,
}

#[derive(Debug)]
enum At {
    /// So many bytes of the preface or of a payload are still to come.
    Within(usize),
    /// So many bytes of a header are there.
    Header([u8; HEADER], usize),
}

impl Frames {
    /// What a client says, from its first word on.
    pub(super) fn of_a_client() -> Self {
        Self { at: At::Within(PREFACE), ..Self::of_a_server() }
    }

    /// What a server says, from its first word on.
    pub(super) fn of_a_server() -> Self {
        Self { at: At::Header([0; HEADER], 0), in_headers: false, in_data: false, data: 0 }
    }

    /// No frame is under way, and another may come.
    pub(super) fn between(&self) -> bool {
        matches!(self.at, At::Header(_, 0)) && !self.in_headers
    }

    /// Bytes that are left of the header or the payload that is under way.
    pub(super) fn left_of_part(&self) -> usize {
        match self.at {
            At::Within(left) => left,
            At::Header(_, have) => HEADER - have,
        }
    }

    /// Bytes of bodies until now: payload of DATA frames, with its padding where there is any.
    pub(super) fn data(&self) -> u64 {
        self.data
    }

    /// Goes on over bytes.
    pub(super) fn follow(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match &mut self.at {
                At::Within(left) => {
                    let taken = bytes.len().min(*left);
                    bytes = &bytes[taken..];
                    *left -= taken;
                    self.data += if self.in_data { taken as u64 } else { 0 };
                    if *left == 0 {
                        self.at = At::Header([0; HEADER], 0);
                    }
                }
                At::Header(header, have) => {
                    let taken = bytes.len().min(HEADER - *have);
                    header[*have..*have + taken].copy_from_slice(&bytes[..taken]);
                    bytes = &bytes[taken..];
                    *have += taken;
                    if *have == HEADER {
                        let header = *header;
                        self.begin(header);
                    }
                }
            }
        }
    }

    fn begin(&mut self, header: [u8; HEADER]) {
        let [high, middle, low, kind, flags, ..] = header;
        self.in_data = kind == DATA;
        if matches!(kind, HEADERS | PUSH_PROMISE | CONTINUATION) {
            self.in_headers = flags & END_HEADERS == 0;
        }
        let length = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        self.at = if length == 0 { At::Header([0; HEADER], 0) } else { At::Within(length) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_bodies_are_counted_whatever_sizes_they_come_in() {
        let frame = |kind: u8, payload: &[u8]| {
            let length = (payload.len() as u32).to_be_bytes();
            [&length[1..], &[kind, END_HEADERS, 0, 0, 0, 1], payload].concat()
        };
        let said =
            [frame(4, &[0; 12]), frame(DATA, &[0; 300]), frame(HEADERS, &[0; 50]), frame(DATA, &[]), frame(DATA, &[7])];
        for size in [1, 2, 8, 9, 10, 64, 1000] {
            let mut frames = Frames::of_a_server();
            said.concat().chunks(size).for_each(|chunk| frames.follow(chunk));
            assert_eq!((frames.data(), frames.between()), (301, true), "{size}");
        }
        let mut frames = Frames::of_a_server();
        frames.follow(&said[1][..HEADER + 100]);
        assert_eq!((frames.data(), frames.between(), frames.left_of_part()), (100, false, 200));
        let mut frames = Frames::of_a_client();
        frames.follow(&[0; PREFACE]);
        assert_eq!((frames.data(), frames.between(), frames.left_of_part()), (0, true, HEADER));
    }
}
