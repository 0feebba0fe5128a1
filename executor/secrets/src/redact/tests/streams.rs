//! Compares matching and masking with the naive redactor, for any division of the input.

use super::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn every_split_matches_naive_redaction(
        (mode, values, text) in values_and_text(),
        parts in proptest::collection::vec(prop_oneof![0usize..4, 0usize..700], 0..40),
    ) {
        let redactor = redactor(mode, &values);
        let expected = expected(&redactor, &text);
        same(&masked(&redactor, &text, &[]), &expected)?;
        same(&masked(&redactor, &text, &parts), &expected)?;
        same(&masked(&redactor, &text, &vec![1; text.len()]), &expected)?;
    }

    #[test]
    fn text_without_secrets_passes_unchanged(
        (mode, values, _) in values_and_text(),
        text: Vec<u8>,
        repeat in 1usize..50,
        parts in proptest::collection::vec(0usize..100, 0..20),
    ) {
        let (redactor, text) = (redactor(mode, &values), text.repeat(repeat));
        prop_assume!(!redactor.forms().any(|form| text.windows(form.len()).any(|window| window == form)));
        same(&masked(&redactor, &text, &parts), &text)?;
    }

    #[test]
    fn redactor_can_change_between_calls(
        (mode, values, text) in values_and_text(),
        parts in proptest::collection::vec((0usize..60, any::<bool>(), proptest::bool::weighted(0.05)), 0..30),
    ) {
        // Both redactors have these values; the second redactor has additional values and other owner numbers.
        let first = redactor(mode, &values);
        let more = [b"another value".to_vec(), b"a".to_vec()].into_iter().chain(values).collect::<Vec<_>>();
        let second = redactor(mode, &more);
        let (mut stream, mut out, mut rest) = (Stream::default(), Vec::new(), &text[..]);
        let flushed = parts.iter().any(|(_, _, flush)| *flush);
        for (part, new, flush) in parts {
            let redactor = if new { &second } else { &first };
            let (now, later) = rest.split_at(part.min(rest.len()));
            rest = later;
            stream.push(redactor, now, &mut out);
            prop_assert!(stream.held() < redactor.longest().max(1));
            if flush {
                stream.flush(redactor, &mut out);
                prop_assert_eq!(stream.held(), 0);
            }
        }
        stream.push(&second, rest, &mut out);
        stream.flush(&second, &mut out);
        prop_assert_eq!(stream.held(), 0);
        // Forms that both redactors mask do not survive unless a flush split them. Forms that begin or end with a
        // part of a mark were not in the text.
        let pieces = between_marks(&out);
        let has = |form: &&[u8]| pieces.iter().any(|piece| piece.windows(form.len()).any(|window| window == *form));
        let survivor = first.forms().find(has);
        prop_assert!(flushed || survivor.is_none(), "{:?} in {}", survivor, out.escape_ascii());
    }
}

/// Splits output at its marks.
fn between_marks(out: &[u8]) -> Vec<&[u8]> {
    let (mut pieces, mut begin, mut at) = (Vec::new(), 0, 0);
    while at < out.len() {
        let digits = out[at..].strip_prefix(b"[REDACTED:v").unwrap_or_default();
        let count = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if count > 0 && digits.get(count) == Some(&b']') {
            pieces.push(&out[begin..at]);
            at = out.len() - digits.len() + count + 1;
            begin = at;
        } else {
            at += 1;
        }
    }
    pieces.push(&out[begin..]);
    pieces
}

#[test]
fn marks_split_output() {
    assert_eq!(between_marks(b"a[REDACTED:v12]b[REDACTED:v]"), [&b"a"[..], b"b[REDACTED:v]"]);
    assert_eq!(between_marks(b"[REDACTED:v1]"), [b"", b""]);
}

#[test]
fn value_is_masked_across_redactor_change() {
    let (old, new) =
        (redactor(Redaction::Auto, &["hunter2hunter2"]), redactor(Redaction::Auto, &["x", "hunter2hunter2"]));
    let (mut stream, mut out) = (Stream::default(), Vec::new());
    stream.push(&old, b"password: hunter2hu", &mut out);
    assert_eq!((out.as_slice(), stream.held()), (&b"password: "[..], 9));
    stream.push(&new, b"nter2.\n", &mut out);
    assert_eq!(out, b"password: [REDACTED:v1].\n");
    assert_eq!(stream.held(), 0);
}

#[test]
fn impossible_prefixes_are_not_held() {
    let redactor = redactor(Redaction::Auto, &["correct horse battery staple"]);
    let (mut stream, mut out) = (Stream::default(), Vec::new());
    stream.push(&redactor, b"listening on port 80", &mut out);
    assert_eq!((out.as_slice(), stream.held()), (&b"listening on port 80"[..], 0));
    stream.push(&redactor, b" correc", &mut out);
    assert_eq!(stream.held(), 6);
    stream.flush(&redactor, &mut out);
    assert_eq!(out, b"listening on port 80 correc");
}

#[test]
fn overlapping_nested_and_touching_values() {
    let values = ["abcdefghij", "ghijklmnop", "abcdefgh", "cdefghij", "12345678"];
    let redactor = redactor(Redaction::Auto, &values);
    let table = [
        ("<abcdefghij>", "<[REDACTED:v0]>"),
        ("<abcdefgh>", "<[REDACTED:v2]>"),
        ("<abcdefghijklmnop>", "<[REDACTED:v0]>"), // no part of v1 is left
        ("<cdefghijklmnop>", "<[REDACTED:v3]>"),
        ("<1234567812345678>", "<[REDACTED:v4]>"),
        ("<12345678abcdefgh>", "<[REDACTED:v4][REDACTED:v2]>"),
        ("<12345678 12345678>", "<[REDACTED:v4] [REDACTED:v4]>"),
    ];
    for (text, expected) in table {
        assert_eq!(redactor.text(text), expected);
    }
}

#[test]
fn long_value_has_one_marker() {
    let value: String = (0..400).map(|number| format!("{number:x}-{};", number * number)).collect();
    let redactor = redactor(Redaction::Auto, &[&value]);
    assert!(redactor.longest() <= 256, "{}", redactor.longest());
    assert_eq!(redactor.text(&format!("{{{value}}}")), "{[REDACTED:v0]}");
    let part = redactor.text(&value[100..value.len() - 100]);
    assert!(part.contains("[REDACTED:v0]") && part.len() < 500, "{part}");
}

#[test]
fn first_name_of_equal_values_is_used() {
    let watched = |name, value: &'static str| Watched { name, value: value.as_bytes() };
    let values = [watched("b", "same value"), watched("a", "same value\n"), watched("list", "x: 1\nsame value\ny: 2")];
    let redactor = Redactor::new(Redaction::Auto, values);
    assert_eq!(redactor.text("same value"), "[REDACTED:b]");
    assert_eq!(redactor.text("x: 1\nsame value\ny: 2"), "[REDACTED:list]");
}

#[test]
fn names_are_made_fit_for_a_line() {
    let long = "n".repeat(200) + "\u{1b}";
    let redactor = Redactor::new(
        Redaction::Auto,
        [Watched { name: "a\nb\u{1b}c", value: b"first value" }, Watched { name: &long, value: b"second value" }],
    );
    assert_eq!(redactor.text("first value"), "[REDACTED:a\\nb\\u{1b}c]");
    assert_eq!(redactor.text("second value"), format!("[REDACTED:{}...]", "n".repeat(125)));
}

/// If output ends in a newline, the newline is not held back, because no piece of a multi-line value begins with a
/// newline.
#[test]
fn trailing_newline_is_not_held() {
    for columns in 8..80 {
        let line = format!("{}\r\n", "k".repeat(columns));
        let value = line.repeat(2000 / columns);
        let redactor = redactor(Redaction::Auto, &[&value]);
        let (mut stream, mut out) = (Stream::default(), Vec::new());
        stream.push(&redactor, b"a line\n", &mut out);
        assert_eq!((&out[..], stream.held()), (&b"a line\n"[..], 0), "{columns} columns");
        assert!(!masked(&redactor, value.as_bytes(), &[]).windows(8).any(|window| window == b"kkkkkkkk"));
    }
}
