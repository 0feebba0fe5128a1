use proptest::prelude::*;

use super::*;

const HEX: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

#[test]
fn short_names_are_dockers() {
    let pinned = format!("debian@sha256:{HEX}");
    let table = [
        ("debian", "docker://docker.io/library/debian:latest"),
        ("debian:12", "docker://docker.io/library/debian:12"),
        ("docker.io/debian", "docker://docker.io/library/debian:latest"),
        ("index.docker.io/a/b", "docker://docker.io/a/b:latest"),
        ("docker://debian:12", "docker://docker.io/library/debian:12"),
        ("cnab/go:1", "docker://docker.io/cnab/go:1"),
        ("127.0.0.1:5000/x/y:tag", "docker://127.0.0.1:5000/x/y:tag"),
        ("localhost/x", "docker://localhost/x:latest"),
        ("LocalHost/x", "docker://localhost/x:latest"),
        ("Example.COM/x", "docker://example.com/x:latest"),
        ("[::1]:5000/x", "docker://[::1]:5000/x:latest"),
        ("r.example/a__b/c.d/e--f_g:T.1-x_", "docker://r.example/a__b/c.d/e--f_g:T.1-x_"),
        (&pinned, &format!("docker://docker.io/library/debian@sha256:{HEX}")),
        ("oci:/a/b", "oci:/a/b"),
        ("oci:/a/b:docker.io/c:1", "oci:/a/b:docker.io/c:1"),
        ("oci-archive:/a.tar:x", "oci-archive:/a.tar:x"),
        ("docker-archive:/a.tar", "docker-archive:/a.tar"),
    ];
    for (text, long) in table {
        let reference = ImageReference::parse_short(text).unwrap_or_else(|bad| panic!("{text}: {bad}"));
        assert_eq!(reference.to_string(), long, "{text}");
        assert_eq!(long.parse::<ImageReference>().unwrap(), reference, "{text}");
    }
    let both: ImageReference = format!("docker://r.example/a:1@sha256:{HEX}").parse().unwrap();
    let ImageReference::Registry(repository, selector) = &both else { panic!("{both:?}") };
    assert_eq!((repository.registry(), repository.path(), selector.tag()), ("r.example", "a", Some("1")));
    assert_eq!(selector.wanted(), format!("sha256:{HEX}"));
}

/// Inputs on which parsers differ have the expected result: the long form without `docker://`, or an error that
/// contains the expected part. ADR 51 compares this parser with the parser of `oci-spec`.
#[test]
fn inputs_that_parsers_disagree_on() {
    let (upper, sha384) = (HEX.to_uppercase(), format!("{HEX}{}", &HEX[..32]));
    let part = |length: usize| "a".repeat(length);
    let table: [(String, Result<String, &str>); 30] = [
        ("Debian".into(), Err("component `Debian`")),
        ("LocalHost/x".into(), Ok("localhost/x:latest".into())),
        ("LOCAL/x".into(), Err("component `LOCAL`")),
        ("Example.COM/x".into(), Ok("example.com/x:latest".into())),
        ("Docker.IO/x".into(), Ok("docker.io/library/x:latest".into())),
        ("x_y.example/a".into(), Err("registry `x_y.example`")),
        ("r.example:5000/a".into(), Ok("r.example:5000/a:latest".into())),
        ("r.example:0/a".into(), Err("registry `r.example:0`")),
        ("r.example:99999/a".into(), Err("registry `r.example:99999`")),
        ("r.example:/a".into(), Err("registry `r.example:`")),
        ("r.example:5000".into(), Ok("docker.io/library/r.example:5000".into())),
        ("[::1]:5000/x".into(), Ok("[::1]:5000/x:latest".into())),
        ("[::1]/x".into(), Ok("[::1]/x:latest".into())),
        ("[::x]/x".into(), Err("registry `[::x]`")),
        (format!("a:1@sha256:{HEX}"), Ok(format!("docker.io/library/a:1@sha256:{HEX}"))),
        (format!("a@sha512:{HEX}{HEX}"), Ok(format!("docker.io/library/a@sha512:{HEX}{HEX}"))),
        (format!("a@sha256:{upper}"), Err("0-9 and a-f")),
        (format!("a@sha384:{sha384}"), Err("`sha256:` or `sha512:`")),
        (HEX.into(), Err("is an image id")),
        (format!("r.example/{}", part(245)), Ok(format!("r.example/{}:latest", part(245)))),
        (format!("r.example/{}", part(246)), Err("are 256 bytes; the maximum is 255")),
        ("a/".into(), Err("component ``")),
        ("/a".into(), Err("component ``")),
        ("a_b/a__b/a---b".into(), Ok("docker.io/a_b/a__b/a---b:latest".into())),
        ("a___b".into(), Err("component `a___b`")),
        ("a_-b".into(), Err("component `a_-b`")),
        ("a-".into(), Err("component `a-`")),
        ("a:\u{e9}".into(), Err("tag")),
        (format!("a:{}", part(129)), Err("tag")),
        ("a\n".into(), Err("component")),
    ];
    for (text, expected) in table {
        match (ImageReference::parse_registry(&text), expected) {
            (Ok(reference), Ok(long)) => assert_eq!(reference.to_string(), format!("docker://{long}"), "{text}"),
            (Err(bad), Err(words)) => assert!(bad.to_string().contains(words), "{text}: {bad}"),
            (other, expected) => panic!("{text}: {other:?}; expected {expected:?}"),
        }
    }
}

#[test]
fn everything_wrong_is_reported_at_once() {
    let bad = "docker://-host:99999/UPPER/ok/a..b:.tag@sha256:12".parse::<ImageReference>().unwrap_err();
    assert_eq!(bad.0.len(), 5, "{bad}");
    type ReferenceRow<'a> = (&'a str, fn(&Fault) -> bool);
    let table: [ReferenceRow<'_>; 18] = [
        ("debian", |fault| matches!(fault, Fault::Scheme)),
        ("host", |fault| matches!(fault, Fault::Scheme)),
        ("dir:/a", |fault| matches!(fault, Fault::Scheme)),
        ("docker://", |fault| matches!(fault, Fault::NoRepository)),
        ("docker://r.example/", |fault| matches!(fault, Fault::NoRepository)),
        ("docker://a//b", |fault| matches!(fault, Fault::Component(_))),
        ("docker://LOCAL/x", |fault| matches!(fault, Fault::Component(_))),
        ("docker://a:", |fault| matches!(fault, Fault::Tag(_))),
        ("docker://a@", |fault| matches!(fault, Fault::Digest(_))),
        ("docker://a@b@c", |fault| matches!(fault, Fault::Digest(_))),
        ("docker://user@r.example/a", |fault| matches!(fault, Fault::Digest(_))),
        ("docker://r.example:0/a", |fault| matches!(fault, Fault::Registry(_))),
        ("docker://[::1/a", |fault| matches!(fault, Fault::Registry(_))),
        ("docker://[::1]x/a", |fault| matches!(fault, Fault::Registry(_))),
        ("oci:relative", |fault| matches!(fault, Fault::Path(_))),
        ("oci:/a/../b", |fault| matches!(fault, Fault::Path(_))),
        ("oci:/a:", |fault| matches!(fault, Fault::Inner(_))),
        ("oci:/a:b c", |fault| matches!(fault, Fault::Inner(_))),
    ];
    for (text, is) in table {
        let bad = text.parse::<ImageReference>().expect_err(text);
        assert!(bad.0.iter().any(is), "{text}: {bad}");
    }
    assert!("docker://".to_owned().parse::<ImageReference>().is_err());
    let long = format!("docker://{}", "a/".repeat(5000));
    assert!(matches!(long.parse::<ImageReference>().unwrap_err().0[..], [Fault::Length(_)]));
    let long = format!("docker://r.example/{}", "a".repeat(250));
    assert!(matches!(long.parse::<ImageReference>().unwrap_err().0[..], [Fault::NameLength(_)]));
}

proptest! {
    /// Parsing a printed reference returns the same reference.
    #[test]
    fn printed_reference_parses(text in "(docker://|oci:|oci-archive:|docker-archive:|)[a-zA-Z0-9./:@_\\[\\]-]{0,40}") {
        if let Ok(reference) = ImageReference::parse_short(&text) {
            prop_assert_eq!(&reference.to_string().parse::<ImageReference>().unwrap(), &reference);
        }
    }

    /// A reference built from the grammar is accepted and split into the same parts.
    #[test]
    fn references_built_from_grammar_are_parsed(
        host in "[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?\\.[a-z]{2,5}(:[1-9][0-9]{0,3})?",
        path in "[a-z0-9]{1,8}((\\.|_|__|-{1,3})[a-z0-9]{1,4}){0,2}(/[a-z0-9]{1,8}){0,3}",
        tag in proptest::option::of("[A-Za-z0-9_][A-Za-z0-9._-]{0,20}"),
        pin in any::<bool>(),
    ) {
        let tag_text = tag.as_ref().map(|tag| format!(":{tag}")).unwrap_or_default();
        let pin_text = if pin { format!("@sha256:{HEX}") } else { String::new() };
        let text = format!("docker://{host}/{path}{tag_text}{pin_text}");
        let ImageReference::Registry(repository, selector) = text.parse::<ImageReference>().unwrap() else {
            panic!("{text}")
        };
        prop_assert_eq!((repository.registry(), repository.path()), (&*host, &*path));
        prop_assert_eq!(selector.digest().is_some(), pin);
        let expected = tag.or_else(|| (!pin).then(|| "latest".to_owned()));
        prop_assert_eq!(selector.tag(), expected.as_deref());
    }

    /// No input causes a panic, and an accepted path contains no `..`.
    #[test]
    fn random_reference_never_panics(text in "\\PC{0,200}") {
        if let Ok(reference) = ImageReference::parse_short(&text)
            && let Some((path, _)) = reference.file()
        {
            prop_assert!(path.is_absolute() && !path.components().any(|c| c == std::path::Component::ParentDir));
        }
    }
}
