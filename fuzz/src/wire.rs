//! Target: a client's bytes on a connection, and its requests in messages.

use executord::server::wire::{check_message, shadow};

/// A client's first words.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Maximum bytes of the client's that the library may be told in one piece: numbers, a window, the few bytes of a setting.
const PIECE: usize = 16;

/// Whatever a client says, the HTTP/2 library gets whole frames of known types, the same ones however the bytes came, and no
/// 16 bytes of the client's; and a message is judged without a fault.
pub fn run(data: &[u8]) {
    let said = [PREFACE, data].concat();
    let reported = shadow(&said, 1 << 20);
    assert_eq!(reported, shadow(&said, 1), "it depends on the pieces");
    assert!(reported.starts_with(PREFACE));
    let mut rest = &reported[PREFACE.len()..];
    while let Some((head, behind)) = rest.split_at_checked(9) {
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        assert!(length <= 16_384 && matches!(head[3], 0 | 1 | 3 | 4 | 6..=9), "{head:?}");
        // The last one may go on.
        let payload = &behind[..length.min(behind.len())];
        let own = payload.split(|byte| *byte == 0).any(|part| part.len() > 2 * PIECE);
        assert!(!own, "{payload:?}");
        rest = &behind[payload.len()..];
    }
    let _ = check_message("/executor.v1.Executor/Run", data);
    let _ = check_message("/executor.v1.Executor/Exec", data);
}
