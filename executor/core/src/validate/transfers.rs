//! Validates downloads and uploads of a tree of actions.
//!
//! A URL is secret: no description contains any part of it.

use super::ViolationReason::{Conflict, InvalidCharacter, InvalidFormat, NotAllowed, Required, Reserved, TooLong};
use super::{Draft, DraftTransfer, FieldFault, Policy, Report, check_path, log_source_fault, parse_user, user_fits};
use crate::limits::{ARTIFACT_MAX, CACHE_KEY_MAX, URL_MAX};
use crate::plan::{Checksum, ChecksumAlgorithm, Direction, PlannedTransfer};

/// Checks the draft's transfers, and returns the planned transfers.
pub(super) fn check(draft: &Draft<'_>, policy: &Policy, report: &mut Report) -> Vec<PlannedTransfer> {
    draft.transfers.iter().filter_map(|asked| transfer(asked, draft, policy, report)).collect()
}

/// Checks a transfer. Returns `None` if its user is invalid.
fn transfer(
    asked: &DraftTransfer<'_>,
    draft: &Draft<'_>,
    policy: &Policy,
    report: &mut Report,
) -> Option<PlannedTransfer> {
    let direction = asked.direction;
    let parent = format!("{}.{}", asked.id, direction.kind());
    let field = |name: &str| format!("{parent}.{name}");
    if !policy.allow_transfers || !policy.allow_exec {
        let key = if policy.allow_transfers { "allow_exec" } else { "allow_transfers" };
        let why = format!("is not allowed by this daemon's configuration ({key})");
        report.add(parent.clone(), NotAllowed.because(why));
    }
    if let Some(why) = asked.url.and_then(|url| check_url(url).err()) {
        report.add(field(direction.url_field()), why);
    }
    if let Err(why) = place(asked.path) {
        report.add(field(direction.path_field()), why);
    }
    for (name, text, most) in
        [("artifact", asked.artifact, ARTIFACT_MAX), ("cache_key", asked.cache_key, CACHE_KEY_MAX)]
    {
        if text.len() > most {
            report.add(field(name), TooLong.because(format!("is {} bytes; the maximum is {most}", text.len())));
        } else if text.chars().any(crate::text::is_harmful) {
            report.add(field(name), InvalidCharacter.because("contains a control character or a bidirectional mark"));
        }
    }
    if let Some(why) = log_source_fault(asked.log_source) {
        report.add(field("log_source"), why);
    }
    let checksum = checksum(asked.checksum, &parent, report);
    let user = parse_user(asked.user).and_then(|user| user_fits(user, draft.isolation.user_namespace));
    let user = user.map_err(|why| report.add(field("user"), why)).ok()?;
    Some(PlannedTransfer {
        id: asked.id.clone(),
        direction,
        artifact: asked.artifact.to_owned(),
        path: asked.path.to_owned(),
        user,
        log_source: asked.log_source.to_owned(),
        checksum,
        cache_key: if direction == Direction::Download { asked.cache_key.to_owned() } else { String::new() },
    })
}

/// Checks a path in the container.
fn place(path: &str) -> Result<(), FieldFault> {
    if path.is_empty() {
        return Err(Required.because("is empty; it must be an absolute path in the container"));
    }
    check_path(path)?;
    if !path.starts_with('/') {
        return Err(InvalidFormat.because("is not absolute"));
    }
    let path = std::path::Path::new(path);
    if ["/proc", "/sys", "/dev"].iter().any(|bad| path.starts_with(bad)) {
        return Err(Reserved.because("is under /proc, /sys or /dev"));
    }
    Ok(())
}

/// Parses algorithm and value of a checksum; both are empty if there is none.
fn checksum((algorithm, value): (&str, &str), parent: &str, report: &mut Report) -> Option<Checksum> {
    let (algorithm_field, value_field) = (format!("{parent}.checksum_algorithm"), format!("{parent}.checksum_value"));
    match (algorithm.is_empty(), value.is_empty()) {
        (true, true) => return None,
        (true, false) => {
            report.add(algorithm_field, Conflict.because("is empty, but checksum_value is set"));
            return None;
        }
        (false, true) => report.add(value_field.clone(), Conflict.because("is empty, but checksum_algorithm is set")),
        (false, false) => {}
    }
    let Some(algorithm) = ChecksumAlgorithm::ALL.into_iter().find(|known| known.name() == algorithm) else {
        report.add(algorithm_field, InvalidFormat.because("is not supported: use `md5`, `sha1` or `sha256`"));
        return None;
    };
    let digits = 2 * algorithm.digest_len();
    if !value.is_empty() && (value.len() != digits || !value.bytes().all(|byte| byte.is_ascii_hexdigit())) {
        let why = format!("is {} bytes; {} requires {digits} hexadecimal digits", value.len(), algorithm.name());
        report.add(value_field, InvalidFormat.because(why));
    }
    Some(Checksum { algorithm, value: value.to_ascii_lowercase() })
}

/// Checks the format of a URL. The error contains no part of the URL.
///
/// # Errors
/// Returns an error if the string is not an http or https URL with a host.
pub fn check_url(url: &str) -> Result<(), FieldFault> {
    if url.is_empty() {
        return Err(Required.because("is empty; it must be an http or https URL"));
    }
    if url.len() > URL_MAX {
        return Err(TooLong.because(format!("is {} bytes; the maximum is {URL_MAX}", url.len())));
    }
    if !url.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(
            InvalidCharacter.because("contains a space, a control character or a non-ASCII byte; percent-encode it")
        );
    }
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    if !["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known)) {
        return Err(InvalidFormat.because("does not begin with http:// or https://"));
    }
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let (host, port) = match host.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']').unwrap_or(("", ""));
            if address.parse::<std::net::Ipv6Addr>().is_err() {
                return Err(InvalidFormat.because("has a host in brackets that is not an IPv6 address"));
            }
            (address, port.strip_prefix(':').or(port.is_empty().then_some("")))
        }
        None => {
            let (name, port) = host.split_once(':').unwrap_or((host, ""));
            (name, Some(port))
        }
    };
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':');
    if host.is_empty() || host.len() > 255 || !host.bytes().all(valid) {
        return Err(InvalidFormat.because("has no valid host name"));
    }
    let is_port = |port: &str| port.is_empty() || port.parse::<u16>().is_ok_and(|port| port > 0);
    if !port.is_some_and(is_port) {
        return Err(InvalidFormat.because("has a port that is not 1 to 65535"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Action, Actions};
    use crate::validate::{DraftStep, recheck, validate};

    #[test]
    fn invalid_url_is_refused_without_its_text() {
        for good in [
            "http://a/b",
            "https://user:pw@host.example:8443/x?sig=secret#f",
            "HTTPS://10.0.0.1",
            "http://[::1]:80/x",
            "http://[fd00::1]?q",
        ] {
            check_url(good).unwrap_or_else(|why| panic!("{good}: {why}"));
        }
        let long = format!("http://a/{}", "secret".repeat(URL_MAX));
        for bad in [
            "",
            "secret",
            "ftp://secret/",
            "file:///secret",
            "http://",
            "http:///secret",
            "http://user@/secret",
            "http://a b/secret",
            "http://a/\u{e9}secret",
            "http://a:0/secret",
            "http://a:65536/secret",
            "http://a:secret/",
            "http://[secret]/",
            "http://[::1]x/secret",
            "http://se,cret/",
            &long,
        ] {
            let why = check_url(bad).unwrap_err();
            assert!(!why.description.contains("secret"), "{bad}: {why}");
        }
    }

    fn download(id: &str) -> DraftTransfer<'_> {
        DraftTransfer {
            id: id.to_owned(),
            direction: Direction::Download,
            artifact: "app",
            url: Some("http://a/b"),
            path: "/app",
            user: "",
            log_source: "",
            checksum: ("", ""),
            cache_key: "",
        }
    }

    fn draft(transfer: DraftTransfer<'_>) -> Draft<'_> {
        let action = Action::Serial(vec![Action::Download(0), Action::Run(0)]);
        let run = DraftStep { field: "action.serial.actions[1].run".into(), path: "/bin/true", ..DraftStep::default() };
        Draft {
            id: "x",
            actions: Some(Actions {
                setup: None,
                action,
                sidecars: Vec::new(),
                restart: None,
                sidecar_limits: Default::default(),
            }),
            steps: vec![run],
            transfers: vec![transfer],
            ..Draft::default()
        }
    }

    const ID: &str = "action.serial.actions[0]";

    #[test]
    fn rechecked_plan_is_unchanged() {
        let policy = Policy { allow_host_rootfs: true, ..Policy::default() };
        let sum = "ABCDEF00112233445566778899aabbcc";
        let asked = DraftTransfer { checksum: ("md5", sum), cache_key: "key", user: "1:2", ..download(ID) };
        let mut plan = validate(&draft(asked), &policy).unwrap();
        assert_eq!(plan.transfers[0].checksum.as_ref().unwrap().value, sum.to_ascii_lowercase());
        recheck(&plan, &policy).unwrap();
        plan.transfers[0].path = "relative".into();
        recheck(&plan, &policy).unwrap_err();
        plan.transfers.clear();
        recheck(&plan, &policy).unwrap_err();
    }

    #[test]
    fn every_violation_has_its_field() {
        let policy = Policy { allow_host_rootfs: true, ..Policy::default() };
        let long = "a".repeat(ARTIFACT_MAX + 1);
        let bad = DraftTransfer {
            artifact: &long,
            url: Some("nope"),
            path: "/proc/self",
            user: "a/b",
            log_source: "a b",
            checksum: ("sha512", "00"),
            cache_key: "a\nb",
            ..download(ID)
        };
        let reported = validate(&draft(bad), &policy).unwrap_err();
        let fields: Vec<&str> = reported.iter().filter_map(|one| one.field.strip_prefix(ID)).collect();
        let names = ["from", "to", "artifact", "cache_key", "log_source", "checksum_algorithm", "user"];
        assert_eq!(fields, names.map(|name| format!(".download.{name}")));
        for (sum, field) in [(("md5", ""), "value"), (("", "00"), "algorithm"), (("sha1", "zz"), "value")] {
            let reported = validate(&draft(DraftTransfer { checksum: sum, ..download(ID) }), &policy).unwrap_err();
            assert_eq!(reported[0].field, format!("{ID}.download.checksum_{field}"));
        }
        for closed in [Policy { allow_transfers: false, ..policy.clone() }, Policy { allow_exec: false, ..policy }] {
            let reported = validate(&draft(download(ID)), &closed).unwrap_err();
            assert_eq!((&*reported[0].field, reported[0].reason), (&*format!("{ID}.download"), NotAllowed));
        }
    }
}
