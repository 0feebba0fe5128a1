//! Compares the redactor with a naive implementation, and its forms with other encoders.

mod bounds;
mod encodings;
mod streams;

use std::fmt::Debug;

use executor_core::plan::Redaction;
use proptest::prelude::*;

use super::{Redactor, Stream, Watched};

/// Creates a redactor of values that are named `v0`, `v1`...
fn redactor(mode: Redaction, values: &[impl AsRef<[u8]>]) -> Redactor {
    let names: Vec<_> = (0..values.len()).map(|index| format!("v{index}")).collect();
    Redactor::new(mode, names.iter().zip(values).map(|(name, value)| Watched { name, value: value.as_ref() }))
}

/// Passes a text through a stream without a flush, in parts of these lengths; the rest is the last part.
fn masked(redactor: &Redactor, text: &[u8], parts: &[usize]) -> Vec<u8> {
    let (mut stream, mut out, mut rest) = (Stream::default(), Vec::new(), text);
    for part in parts {
        let (now, later) = rest.split_at((*part).min(rest.len()));
        stream.push(redactor, now, &mut out);
        assert!(stream.held() < redactor.longest().max(1), "{} bytes are held", stream.held());
        rest = later;
    }
    stream.push(redactor, rest, &mut out);
    stream.flush(redactor, &mut out);
    assert_eq!(stream.held(), 0);
    out
}

/// Computes the expected output by a naive search.
fn expected(redactor: &Redactor, text: &[u8]) -> Vec<u8> {
    let forms: Vec<_> = redactor.matcher.forms(&redactor.bytes).collect();
    let longest = |place: usize| {
        let here = forms.iter().filter(|(form, _)| text[place..].starts_with(form));
        here.max_by_key(|(form, _)| form.len()).map(|(form, owner)| (form.len(), *owner))
    };
    let found: Vec<_> = (0..text.len()).map(longest).collect();
    let (mut out, mut place, mut before) = (Vec::new(), 0, None);
    while place < text.len() {
        let Some((length, owner)) = found[place] else {
            out.push(text[place]);
            (place, before) = (place + 1, None);
            continue;
        };
        let mut end = place + length;
        while place < end {
            end = end.max(found[place].map_or(0, |(length, _)| place + length));
            place += 1;
        }
        let marker = &redactor.markers[owner as usize].text;
        if before.as_ref() != Some(marker) {
            out.extend_from_slice(marker.as_bytes());
            before = Some(marker.clone());
        }
    }
    out
}

/// Generates values: some that overlap, nest, repeat or share beginnings; ordinary, long and arbitrary ones.
fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        proptest::collection::vec(prop_oneof![Just(b'a'), Just(b'b')], 0..24),
        (proptest::collection::vec(any::<u8>(), 1..4), 1usize..300).prop_map(|(unit, times)| unit.repeat(times)),
        "[a-zA-Z0-9+/ =&%\"\\\\\n]{0,40}".prop_map(String::into_bytes),
        proptest::collection::vec(any::<u8>(), 0..700),
        "([ -~]{0,90}\n){0,6}".prop_map(String::into_bytes),
    ]
}

/// Generates values and a text that consists of parts of the values, parts of their forms, and other bytes.
fn values_and_text() -> impl Strategy<Value = (Redaction, Vec<Vec<u8>>, Vec<u8>)> {
    let modes = prop_oneof![Just(Redaction::Auto), Just(Redaction::All), Just(Redaction::None)];
    let cuts = proptest::collection::vec((any::<u16>(), any::<u16>(), any::<u16>()), 0..12);
    let other = proptest::collection::vec(prop_oneof![Just(b'a'), Just(b'b'), any::<u8>()], 0..20);
    (modes, proptest::collection::vec(value(), 0..4), cuts, other).prop_map(|(mode, values, cuts, other)| {
        let forms: Vec<_> = redactor(mode, &values).forms().map(<[u8]>::to_vec).collect();
        let sources: Vec<_> = values.iter().chain(&forms).filter(|source| !source.is_empty()).collect();
        let mut text = Vec::new();
        for (which, from, to) in cuts.into_iter().filter(|_| !sources.is_empty()) {
            let source = sources[usize::from(which) % sources.len()];
            // Half of the parts begin at the start, and half of them reach to the end.
            let from = if from % 2 == 0 { 0 } else { usize::from(from) % source.len() };
            let to = if to % 2 == 0 { source.len() } else { from + usize::from(to) % (source.len() - from + 1) };
            text.extend_from_slice(&source[from..to]);
            text.extend_from_slice(&other[..usize::from(which) % (other.len() + 1)]);
        }
        text.truncate(3000);
        (mode, values, text)
    })
}

/// Asserts that two byte strings are equal. On failure, prints both escaped.
fn same(left: &[u8], right: &[u8]) -> Result<(), TestCaseError> {
    prop_assert!(left == right, "{}\n  is not\n{}", left.escape_ascii(), right.escape_ascii());
    Ok(())
}

/// Asserts that `Debug` does not print a secret value.
fn reports_nothing(what: &impl Debug, value: &str) {
    let reported = format!("{what:?}");
    assert!(!reported.contains(value), "{reported}");
}
