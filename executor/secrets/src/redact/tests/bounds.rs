//! Tests the maximum number of examined bytes, the memory limits, and the warnings about values that do not fit.

use super::super::matcher::cost;
use super::super::pieces::{ENCODED_MAX, FORM_MAX, VALUES_MAX};
use super::*;

/// Returns the number of bytes examined for a text that arrives in parts of `part` bytes.
fn cost_of(redactor: &Redactor, text: &[u8], part: usize) -> usize {
    cost::take();
    masked(redactor, text, &vec![part; text.len() / part]);
    cost::take()
}

#[test]
fn redaction_cost_is_linear_in_hostile_input() {
    let nested = (8..240).map(|length| vec![b'a'; length]).collect::<Vec<_>>();
    let near_misses: Vec<_> = (0..200u8).map(|last| [&[b'a'; 230][..], &[last]].concat()).collect();
    let periodic = (2..40).map(|period| [&vec![b'a'; period][..], b"b"].concat().repeat(300)).collect::<Vec<_>>();
    let counting = (0..2000u16).map(|number| [&[b'a'; 200][..], &number.to_be_bytes()].concat()).collect::<Vec<_>>();
    let cases = [
        ("one letter", vec![vec![b'a'; 100_000]], &b"a"[..]),
        ("nested", nested, b"a"),
        ("near misses", near_misses, b"a"),
        ("periodic", periodic, b"aaaaaaab"),
        ("long common beginnings", counting.clone(), b"a"),
        ("the same, interrupted", counting, b"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac"),
    ];
    for (name, values, unit) in cases {
        let redactor = redactor(Redaction::Auto, &values);
        let steps = redactor.forms().count().ilog2() as usize + 2;
        let text = unit.repeat(20_000 / unit.len());
        let bound = text.len() * (steps + 1) * (8 + FORM_MAX);
        for part in [61_440, 100, 1] {
            let once = cost_of(&redactor, &text, part);
            // Each part adds one search, for the undecided position.
            let bound = bound + text.len() / part * steps * (8 + FORM_MAX);
            assert!(once <= bound, "{name} in parts of {part}: {once} of {bound}");
            let twice = cost_of(&redactor, &text.repeat(2), part);
            assert!(twice <= once * 21 / 10 + 100_000, "{name} in parts of {part}: {once}, then {twice}");
        }
    }
}

#[test]
fn ordinary_text_is_passed_over() {
    let values: Vec<_> = (0..100u64).map(|n| format!("{:032x}", (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect();
    let redactor = redactor(Redaction::Auto, &values);
    let line = "2026-11-21T10:00:00Z INFO request finished method=GET path=/v1/containers status=200 took=1.2ms\n";
    let text = line.repeat(500);
    let cost = cost_of(&redactor, text.as_bytes(), 61_440);
    assert!(cost < text.len() / 2, "{cost} bytes examined for {}", text.len());
}

#[test]
fn redaction_memory_is_bounded_and_excess_named() {
    let large: Vec<u8> = (0..4_000_000u32).flat_map(|n| n.wrapping_mul(0x9e37_79b9).to_be_bytes()).collect();
    let watched = |name, value| Watched { name, value };
    let redactor = Redactor::new(Redaction::Auto, [watched("large", &large[..]), watched("small", b"a small value")]);
    let reported = redactor.warnings();
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert!(reported[0].contains("not masked in every encoding") && reported[0].ends_with(": large"), "{reported:?}");
    let most = large.len() * 5 / 4 + ENCODED_MAX;
    assert!(redactor.bytes() < most, "{} of {most}", redactor.bytes());
    // The large value itself is still masked, and the small value is masked in every form.
    let mut out = masked(&redactor, &large, &[61_440; 300]);
    assert_eq!(out.as_slice(), b"[REDACTED:large]");
    out = masked(&redactor, b"a%20small%20value YSBzbWFsbCB2YWx1ZQ==", &[]);
    assert_eq!(out.as_slice(), b"[REDACTED:small] [REDACTED:small]");
}

#[test]
fn oversized_values_are_masked_partially() {
    let large = b"0123456789abcdef\n".repeat(VALUES_MAX / 17 + 10);
    let larger = [b"x", &large[..]].concat();
    let watched = |name, value| Watched { name, value };
    let values = [watched("larger", &larger[..]), watched("large", &large[..]), watched("small", b"a small value")];
    let redactor = Redactor::new(Redaction::Auto, values);
    let reported = redactor.warnings();
    assert_eq!(reported.len(), 2, "{reported:?}");
    assert!(reported[0].contains("not masked in full") && reported[0].ends_with(": large, larger"), "{reported:?}");
    assert!(
        reported[1].contains("not masked in every encoding") && reported[1].ends_with(": large, larger"),
        "{reported:?}"
    );
    assert_eq!(redactor.text("a small value"), "[REDACTED:small]");
    assert_eq!(redactor.text("0123456789abcdef\n".repeat(100).as_str()).matches("[REDACTED:large]").count(), 1);
}

#[test]
fn warnings_name_unmasked_secrets_without_values() {
    let values = [
        ("pin", "1234"),
        ("word", "hunter2\n"),
        ("empty", ""),
        ("blank", "  \n "),
        ("tiny", "abc"),
        ("pin", "1235"),
        ("good", "long enough"),
    ];
    let redactor =
        |mode| Redactor::new(mode, values.iter().map(|(name, value)| Watched { name, value: value.as_bytes() }));
    let (auto, all, none) = (redactor(Redaction::Auto), redactor(Redaction::All), redactor(Redaction::None));
    assert_eq!(
        auto.warnings(),
        [
            "values shorter than 8 bytes are not masked in the output: pin, tiny",
            "values shorter than 8 bytes without surrounding white space are masked only with that white space: word",
            "values that consist of white space are not masked in the output: blank",
        ]
    );
    assert_eq!(
        all.warnings(),
        [
            "values shorter than 4 bytes are not masked in the output: tiny",
            "values that consist of white space are not masked in the output: blank",
        ]
    );
    assert!(none.warnings().is_empty() && none.is_idle() && !all.is_idle());
    for (_, value) in values.iter().filter(|(_, value)| value.len() > 4) {
        for redactor in [&auto, &all, &none] {
            reports_nothing(redactor, value.trim());
            reports_nothing(&redactor.warnings(), value.trim());
        }
        reports_nothing(&Watched { name: "x", value: value.as_bytes() }, value.trim());
    }
    assert_eq!(auto.text("1234 hunter2 hunter2\n long enough"), "1234 hunter2 [REDACTED:word] [REDACTED:good]");
    assert_eq!(all.text("1234 hunter2 abc"), "[REDACTED:pin] [REDACTED:word] abc");
    assert_eq!(none.text("long enough"), "long enough");

    let many: Vec<_> = (0..200).map(|number| format!("short{number:03}")).collect();
    let many = Redactor::new(Redaction::Auto, many.iter().map(|name| Watched { name, value: b"x" }));
    assert!(many.warnings()[0].ends_with("short049, and 150 more"), "{:?}", many.warnings());
}
