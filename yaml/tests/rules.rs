//! Tests limits (alias bombs, depth, sizes), duplicate keys, merges, modes, and the positions of faults. The rules are
//! in docs/guides/kube-rules.md.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

use std::collections::BTreeMap;

use executor_yaml::{FaultKind, Limits, Node, Value, decode, parse};
use serde::Deserialize;

fn tree(text: &str) -> Node {
    parse(text, 1, &Limits::OBJECT).unwrap_or_else(|error| panic!("{text}: {error}")).root
}

fn refused(text: &str) -> String {
    let error = parse(text, 1, &Limits::OBJECT).err().unwrap_or_else(|| panic!("{} bytes pass", text.len()));
    format!("{}: {error}", error.place)
}

/// Rule P5: copies by aliases are limited. In the "billion laughs" attack, each level copies the previous level nine
/// times.
#[test]
fn p5_alias_bombs_are_refused() {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let before = vec![format!("*a{}", level - 1); 9].join(", ");
        text.push_str(&format!("a{level}: &a{level} [{before}]\n"));
    }
    assert!(refused(&text).contains("copy more than"), "{}", refused(&text));
    let long = format!("a: &a {}\nb: [{}]\n", "x".repeat(1 << 20), ["*a"; 9].join(", "));
    assert!(refused(&long).contains("copy more than"));
    assert!(refused("a: &a [*a]").contains("own anchor"));
    let mut merges = "m0: &m0 {a: 1, b: 2}\n".to_owned();
    for level in 1..40 {
        merges.push_str(&format!("m{level}: &m{level} {{<<: *m{0}, c: *m{0}, d: *m{0}}}\n", level - 1));
    }
    assert!(parse(&merges, 1, &Limits::OBJECT).is_err());
    // As a control, ordinary use of aliases is accepted.
    let node = tree("base: &base {a: 1, b: 2}\nuse: [*base, {<<: *base, b: 3}]\n");
    let Value::List(list) = &node.get("use").unwrap().value else { panic!("a list") };
    assert!(matches!(list[0].get("b").unwrap().value, Value::Int(2)));
    assert!(matches!(
        (&list[1].get("a").unwrap().value, &list[1].get("b").unwrap().value),
        (Value::Int(1), Value::Int(3))
    ));
}

#[test]
fn sizes_and_depth_are_bounded() {
    assert!(refused(&"[".repeat(100_000)).contains("deeper") || refused(&"[".repeat(100_000)).contains("limit"));
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(parse(&nested(100), 1, &Limits::OBJECT).is_ok());
    assert!(refused(&nested(101)).contains("deeper than 100"));
    let deep: String = (0..200).map(|level| format!("{}a:\n", " ".repeat(level))).collect();
    assert!(refused(&deep).contains("deeper"));
    let megabyte = format!("a: {}\n", "x".repeat(1 << 20));
    assert_eq!(tree(&megabyte).get("a").unwrap().text().unwrap().len(), 1 << 20);
    assert!(refused(&format!("a: {}\n", "x".repeat(3 << 20))).contains("the maximum is 3145728"));
    assert!(refused(&format!("[{}]", "1,".repeat(600_000))).contains("more than 500000"));
}

#[test]
fn p1_json_is_parsed() {
    let node = tree("{\n\t\"a\": \"\\u00e4\\ud83d\\ude00\\/\",\n\t\"b\":[1,2.5,true,null],\"mode\":420}");
    assert_eq!(node.get("a").unwrap().text(), Some("ä😀/"));
    assert!(matches!(node.get("mode").unwrap().value, Value::Int(420)));
}

#[test]
fn p4_duplicate_keys_are_reported_last_wins() {
    let parsed = parse("a:\n  b: 1\n  'b': 2\nc: 3\n", 10, &Limits::OBJECT).unwrap();
    let reported: Vec<_> = parsed.duplicates.iter().map(|one| (&*one.path, one.place.line, one.kind)).collect();
    assert_eq!(reported, [("a.b", 12, FaultKind::Duplicate)]);
    assert!(parsed.duplicates[0].message.contains("first in line 11"));
    assert!(matches!(parsed.root.get("a").unwrap().get("b").unwrap().value, Value::Int(2)));
}

#[test]
fn yaml_outside_json_model_is_refused() {
    for (text, message) in [
        ("a: b: c", "not YAML"),
        ("a: 'b", "not YAML"),
        ("a: *x", "not YAML"),
        ("[a]: 1", "not a scalar"),
        ("a: .inf", "JSON cannot represent"),
        ("a: !secret x", "not a standard YAML tag"),
        ("a: !!int x", "does not match its value"),
        ("<<: 3", "`<<` must have"),
        ("a: 1\n...\nb: 2\n", "second document"),
    ] {
        assert!(refused(text).contains(message), "{text}: {}", refused(text));
    }
    assert!(matches!(&tree("a: !!str 12").get("a").unwrap().value, Value::Text(text) if &***text == "12"));
    assert!(matches!(&tree("a: !!binary aGk=").get("a").unwrap().value, Value::Text(text) if &***text == "hi"));
    let error = parse("a: 1\nb: [\n", 5, &Limits::OBJECT).unwrap_err();
    assert!(error.place.line >= 6, "{error:?}");
}

#[derive(Debug, Deserialize)]
#[serde(default)]
#[derive(Default)]
struct Thing {
    name: Option<String>,
    size: Option<i32>,
    run: Option<bool>,
    list: Option<Vec<Thing>>,
    map: Option<BTreeMap<String, String>>,
}

/// All faults are reported together, each with its path and line and without the value.
#[test]
fn p3_faults_of_values_and_unknown_fields() {
    let text = "name: 8080\nsize: '12'\nrun: maybe-hunter2\nlist:\n- name: yes\n  nam: hunter2\n- hunter2\n- {size: 3000000000}\n\
                map:\n  a.b: 1\n  c: fine\nmode: 0400\n";
    let decoded = decode::<Thing>(&tree(text));
    let reported: Vec<_> =
        decoded.faults.iter().map(|one| format!("{}:{}: {}", one.place.line, one.path, one.message)).collect();
    assert_eq!(
        reported,
        [
            "1:name: is a number; it must be a string: quote it",
            "2:size: is a string; it must be a whole number: write it without quotes",
            "3:run: is a string; it must be true or false",
            "5:list[0].name: is a boolean; it must be a string: quote it",
            "6:list[0].nam: is an unknown field",
            "7:list[1]: is a string; it must be a mapping",
            "8:list[2].size: is not a whole number of 32 bits",
            "10:map['a.b']: is a number; it must be a string: quote it",
            "12:mode: is an unknown field",
        ]
    );
    let value = decoded.value.unwrap();
    assert_eq!((value.list.unwrap().len(), value.map.unwrap()["c"].as_str()), (3, "fine"));
    assert_eq!((value.name, value.size, value.run), (None, None, None));
}

/// Rule P1: a merge key may have its explicit tag.
#[test]
fn p1_merges_may_have_their_tag() {
    let node = tree("a: &a {c: 1, d: 2}\nb:\n  !!merge <<: *a\n  d: 3\n");
    let at = |key: &str| node.get("b").unwrap().get(key).map(|node| node.value.kind());
    assert!(at("c").is_some() && at("<<").is_none());
    assert!(matches!(node.get("b").unwrap().get("d").unwrap().value, Value::Int(3)));
    assert!(refused("a: !!merge x").contains("does not match its value"));
}

/// Rule P2: each of the three usual notations of a mode gives the same mode.
#[test]
fn p2_modes() {
    for (text, mode) in [("0644", 420), ("0o644", 420), ("420", 420), ("400", 400)] {
        assert_eq!(decode::<Thing>(&tree(&format!("size: {text}"))).value.unwrap().size, Some(mode), "{text}");
    }
    assert_eq!(decode::<Thing>(&tree("size: '0400'")).faults.len(), 1);
}

#[test]
fn a_place_is_found_by_its_path() {
    let node = tree("a:\n  b.c:\n  - x\n  - d: 1\n");
    assert_eq!((node.place_of("a['b.c'][1].d").line, node.place_of("a.none").line), (4, 1));
    assert!(!format!("{node:?} {:?}", node.value).contains('x'));
}

/// Rule P1: within braces and brackets, tabs count as white space, as in go-yaml.
#[test]
fn p1_tabs_in_flow_are_space() {
    for text in [
        "a: {\tb: 1,\tc: x\t}",
        "a: {\n\tb: 1,\n\tc: x\n}",
        "a: {\n\t\tb: 1,\n  \tc: x\n\t}",
        "a: {\tb\t:\t1\t,\n\t\n c: x}",
        "a:\n  {\n\t# a comment\n\tb: 1, # {\n\tc: x }\n",
        "a: {b: 1,\n\t'c':\n\t'x'}",
        "a:\t{b: 1, c: x}\t# a comment",
    ] {
        let node = tree(text);
        let map = node.get("a").unwrap();
        assert!(matches!(map.get("b").unwrap().value, Value::Int(1)), "{text:?}");
        assert_eq!(map.get("c").unwrap().text(), Some("x"), "{text:?}");
    }
    let node = tree("- [\ta,\n\tb\t]\n- - {a: \"x\ty\",\n\tb: 'u\tv'}\n");
    let Value::List(list) = &node.value else { panic!("a list") };
    let (Value::List(one), Value::List(two)) = (&list[0].value, &list[1].value) else { panic!("lists") };
    assert_eq!((one[0].text(), one[1].text()), (Some("a"), Some("b")));
    assert_eq!((two[0].get("a").unwrap().text(), two[0].get("b").unwrap().text()), (Some("x\ty"), Some("u\tv")));
    // Elsewhere tabs are not indentation.
    assert!(refused("a:\n\tb: 1\n").contains("not YAML"));
}

/// Rule P1: quoted text may continue at the column of its key, as for go-yaml.
#[test]
fn p1_quoted_text_continues_at_its_key() {
    for text in ["a: \"one\ntwo\"\nb: 1\n", "a: 'one\ntwo'\nb: 1\n", "a:\n  \"one\ntwo\"\nb: 1\n"] {
        let node = tree(text);
        assert_eq!(node.get("a").unwrap().text(), Some("one two"), "{text:?}");
        assert_eq!(node.place_of("b").line, text.lines().count(), "{text:?}");
    }
    let node = tree("a:\n- b: \"one\n\n  two\"\n  c: x\n");
    assert_eq!(node.at("a[0].b").unwrap().text(), Some("one\ntwo"));
    // Places after such a line are correct positions in the file.
    let error = parse("a: \"one\ntwo\"\nb: [\n", 10, &Limits::OBJECT).unwrap_err();
    assert!(error.place.line >= 12, "{error:?}");
}

/// Rule P3: as in Go, a null value in a map of strings is empty text. A null optional field is unset.
#[test]
fn p3_null_is_an_empty_text() {
    let decoded = decode::<Thing>(&tree("map: {a: null, b: x, c: ~, d: }\nname: null\n"));
    assert!(decoded.faults.is_empty(), "{:?}", decoded.faults);
    let value = decoded.value.unwrap();
    let map = value.map.unwrap();
    assert_eq!((map["a"].as_str(), map["b"].as_str(), map["c"].as_str(), map["d"].as_str()), ("", "x", "", ""));
    assert_eq!(value.name, None);
}
