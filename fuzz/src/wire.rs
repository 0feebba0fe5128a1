//! Target: the bytes of a client's connection, and the memory cost of its messages.

use executor_transport::wire::shadow;
use executord::server::weight::check_message;

/// The HTTP/2 connection preface.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Maximum number of consecutive client bytes that h2 may receive: numbers, a window size, a setting.
const PIECE: usize = 16;

/// Checks that h2 receives only frames of known types, that the frames do not depend on how the bytes are split, and
/// that no payload has more than `2 * PIECE` nonzero bytes in a row. Also checks that computing the memory cost of a
/// message does not panic.
pub fn run(data: &[u8]) {
    let said = [PREFACE, data].concat();
    let reported = shadow(&said, 1 << 20);
    assert_eq!(reported, shadow(&said, 1), "the frames depend on how the bytes are split");
    assert!(reported.starts_with(PREFACE));
    let mut rest = &reported[PREFACE.len()..];
    while let Some((head, behind)) = rest.split_at_checked(9) {
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        assert!(length <= 16_384 && matches!(head[3], 0 | 1 | 3 | 4 | 6..=9), "{head:?}");
        // The last frame may be incomplete.
        let payload = &behind[..length.min(behind.len())];
        let own = payload.split(|byte| *byte == 0).any(|part| part.len() > 2 * PIECE);
        assert!(!own, "{payload:?}");
        rest = &behind[payload.len()..];
    }
    let _ = check_message("/executor.v1.Executor/Run", data);
    let _ = check_message("/executor.v1.Executor/Exec", data);
}
