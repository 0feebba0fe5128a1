//! Compares the forms with encoders that programs use.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};

use super::*;

/// Asserts that no part of a form remains in the masked text.
fn assert_gone(redactor: &Redactor, text: &str, form: &str) -> Result<(), TestCaseError> {
    prop_assert!(text.contains(form), "control failed: the text does not contain the form");
    let out = redactor.text(text);
    prop_assert!(!out.contains(form), "{form:?} is left of {text:?}: {out:?}");
    prop_assert!(out.contains("[REDACTED:v0]"), "{out:?}");
    Ok(())
}

fn percent(text: &str, keep: &str, upper: bool, plus: bool) -> String {
    let one = |byte: &u8| match *byte {
        b' ' if plus => "+".to_owned(),
        byte if byte.is_ascii_alphanumeric() || keep.as_bytes().contains(&byte) => char::from(byte).to_string(),
        byte if upper => format!("%{byte:02X}"),
        byte => format!("%{byte:02x}"),
    };
    text.as_bytes().iter().map(one).collect()
}

/// Escapes like Python's json.dumps.
fn ascii_json(text: &str) -> String {
    let plain = serde_json::to_string(text).unwrap();
    let units = |c: char| c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect();
    let one = |c: char| if (' '..='~').contains(&c) { c.to_string() } else { units(c) };
    plain.chars().map(one).collect()
}

/// Brackets that are escaped for HTML are found even if the line separators, which Go also escapes, are not escaped.
#[test]
fn html_escaped_json_is_masked() {
    let value = "<\u{2028}0 a longer secret";
    let redactor = redactor(Redaction::Auto, &[value.as_bytes()]);
    assert_eq!(redactor.text(&value.replace('<', "\\u003c")), "[REDACTED:v0]");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn no_form_of_a_value_survives(
        value in prop_oneof!["\\PC{8,60}", "[ -~\t\n]{8,60}", "([ -~é]{0,90}\r?\n){0,9}[a-z]{8}"],
        before in "[ -~]{0,20}",
        after in "[ -~]{0,20}",
    ) {
        let value = value.trim_ascii();
        prop_assume!(value.len() >= 8);
        let redactor = redactor(Redaction::Auto, &[format!("\t{value}\n")]);
        let json = serde_json::to_string(value).unwrap();
        let ascii = ascii_json(value);
        let mut forms = vec![value.to_owned(), json.trim_matches('"').to_owned(), ascii.trim_matches('"').to_owned()];
        // `trim_matches` also removes an escaped quote at the end of the value, so cut one character at each end.
        forms[1] = json[1..json.len() - 1].to_owned();
        forms[2] = ascii[1..ascii.len() - 1].to_owned();
        forms.push(forms[1].replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026"));
        forms.push(forms[1].replace('/', "\\/"));
        for upper in [true, false] {
            forms.extend(["-._~", "-._~/", "-._~!*'()"].map(|keep| percent(value, keep, upper, false)));
            forms.extend(["-._~", "*-._"].map(|keep| percent(value, keep, upper, true)));
        }
        forms.extend(value.lines().map(str::trim_ascii).filter(|line| line.len() >= 8).map(str::to_owned));
        for form in forms {
            // Surrounding text must not be mistaken for part of the form.
            assert_gone(&redactor, &format!("{before}[{form}]{after}"), &form)?;
        }
    }

    #[test]
    fn base64_is_masked_at_every_alignment(
        value in proptest::collection::vec(any::<u8>(), 8..600),
        before in proptest::collection::vec(any::<u8>(), 0..9),
        after in proptest::collection::vec(any::<u8>(), 0..9),
    ) {
        let content = value.trim_ascii();
        prop_assume!(content.len() >= 8);
        let redactor = redactor(Redaction::Auto, &[&value]);
        let data = [&before[..], content, &after[..]].concat();
        let determined = (8 * before.len()).div_ceil(6)..8 * (before.len() + content.len()) / 6;
        for engine in [STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD] {
            let text = format!("token={} ", engine.encode(&data));
            assert_gone(&redactor, &text, &text[6..][determined.clone()])?;
        }
    }

    #[test]
    fn base64_of_a_value_alone_leaves_nothing(text in "[ -~]{7,300}[a-z]", end in "(\r?\n)?") {
        let text = text.trim_ascii();
        prop_assume!(text.len() >= 8);
        let value = format!("{text}{end}");
        let redactor = redactor(Redaction::Auto, &[&value]);
        for engine in [STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD] {
            for data in [text, &value] {
                let out = redactor.text(&format!("<{}>", engine.encode(data)));
                prop_assert_eq!(out, "<[REDACTED:v0]>");
            }
            // HTTP basic authentication encodes values this way.
            let out = redactor.text(&engine.encode(format!("user:{text}")));
            prop_assert!(out.ends_with("[REDACTED:v0]") && out.len() <= 7 + 13, "{}", out);
        }
    }

    #[test]
    fn wrapped_base64_is_found(value in proptest::collection::vec(any::<u8>(), 60..900), columns in prop_oneof![Just(64), Just(76)]) {
        let content = value.trim_ascii();
        prop_assume!(content.len() >= 60);
        let redactor = redactor(Redaction::Auto, &[&value]);
        let encoded = STANDARD.encode(content);
        let lines: Vec<_> = encoded.as_bytes().chunks(columns).map(|line| str::from_utf8(line).unwrap()).collect();
        let out = redactor.text(&lines.join("\n"));
        for (line, shown) in lines.iter().zip(out.lines()) {
            // The last line is not masked if the value determines less than eight of its characters.
            prop_assert!(shown == "[REDACTED:v0]" || line.len() < 8 + 4, "{} of {}", shown, line);
        }
    }
}

#[test]
fn a_masked_line_keeps_its_end() {
    let redactor = redactor(Redaction::Auto, &["hunter2hunter2\n", "first line\nsecond line\n"]);
    assert_eq!(redactor.text("hunter2hunter2\nok\n"), "[REDACTED:v0]\nok\n");
    assert_eq!(redactor.text("first line\nsecond line\nok\n"), "[REDACTED:v1]\nok\n");
    assert_eq!(redactor.text("1 first line\n2 second line\n"), "1 [REDACTED:v1]\n2 [REDACTED:v1]\n");
    assert_eq!(redactor.text(r#"{"msg":"first line\nsecond line\n"}"#), r#"{"msg":"[REDACTED:v1]\n"}"#);
}

#[test]
fn lines_of_json_are_found_within_json() {
    let redactor = redactor(Redaction::Auto, &["{\n  \"user\": \"admin\",\n  \"password\": \"s3cr3t/x\"\n}\n"]);
    assert_eq!(redactor.text(r#"got \"password\": \"s3cr3t/x\" here"#), "got [REDACTED:v0] here");
    assert_eq!(redactor.text(r#"got \"password\": \"s3cr3t\/x\" here"#), "got [REDACTED:v0] here");
    assert_eq!(redactor.text("%22password%22%3A+%22s3cr3t%2Fx%22"), "[REDACTED:v0]");
}

#[test]
fn four_bytes_are_found_in_every_encoding() {
    let redactor = redactor(Redaction::All, &["p=/1"]);
    for text in ["p=/1", "p%3D%2F1", "p%3d%2f1", "p%3D/1", "p=\\/1", "cD0vMQ==", "cD0vMQ", "p\\u003d/1"] {
        assert_eq!(redactor.text(&format!("({text})")), "([REDACTED:v0])");
    }
    for before in ["x", "xy"] {
        let out = redactor.text(&STANDARD.encode(format!("{before}p=/1 ")));
        assert!(out.contains("[REDACTED:v0]"), "{out}");
    }
}
