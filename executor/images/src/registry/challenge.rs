//! Parses a registry's 401 challenges, from the header `WWW-Authenticate` (RFC 9110, 11.6.1; distribution's token
//! specification).

use hyper::header::{HeaderMap, WWW_AUTHENTICATE};

/// Maximum length of a header that is parsed, in bytes.
const HEADER_MAX: usize = 8 << 10;

/// An authentication scheme that the registry offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Challenge {
    /// Basic authentication, with user name and password.
    Basic,
    /// Authentication with a token, which a token service issues.
    Bearer {
        /// URL of the token service.
        realm: String,
        /// Value of the parameter `service`, which is sent to the token service.
        service: String,
    },
}

/// Returns the preferred scheme: a token if it is offered, otherwise a password.
pub(super) fn best(headers: &HeaderMap) -> Option<Challenge> {
    let values = headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok());
    let offered: Vec<Challenge> = values.filter(|value| value.len() <= HEADER_MAX).flat_map(parse).collect();
    let bearer = offered.iter().find(|challenge| matches!(challenge, Challenge::Bearer { .. }));
    bearer.or(offered.first()).cloned()
}

/// Parses the challenges of one header (RFC 9110, 11.3). A challenge is a scheme, then a token68 or parameters. Parsing
/// stops at the first part that has another syntax.
fn parse(header: &str) -> Vec<Challenge> {
    let mut found = Vec::new();
    let mut rest = header.trim_start();
    while !rest.is_empty() {
        let end = rest.find([' ', ',', '=']).unwrap_or(rest.len());
        let scheme = rest[..end].to_ascii_lowercase();
        rest = rest[end..].trim_start();
        let mut parameters = Vec::new();
        if let Some(after) = after_token68(rest) {
            rest = after;
        } else {
            while let Some((name, value, after)) = parameter(rest) {
                parameters.push((name, value));
                rest = after;
            }
        }
        let of = |name: &str| parameters.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
        match (&*scheme, of("realm")) {
            ("basic", _) => found.push(Challenge::Basic),
            ("bearer", Some(realm)) => {
                found.push(Challenge::Bearer { realm, service: of("service").unwrap_or_default() });
            }
            _ => {}
        }
        let trimmed = rest.trim_start_matches([' ', ',']);
        if trimmed.len() == rest.len() && !rest.is_empty() {
            break; // neither a parameter nor the beginning of another challenge
        }
        rest = trimmed;
    }
    found
}

/// Returns the text after a token68 (RFC 9110, 11.2). A token68 ends a challenge. Returns `None` if the text does not
/// begin with a token68.
fn after_token68(text: &str) -> Option<&str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | '~' | '+' | '/');
    let rest = text.trim_start_matches(is_part);
    if rest.len() == text.len() {
        return None;
    }
    let rest = rest.trim_start_matches('=');
    let next = rest.trim_start_matches(' ');
    (next.is_empty() || next.starts_with(',')).then_some(rest)
}

/// Parses `name=value` or `name="value"`, and returns the remaining text.
fn parameter(text: &str) -> Option<(String, String, &str)> {
    let text = text.trim_start_matches([' ', ',']);
    let (name, rest) = text.split_once('=')?;
    let name = name.trim_end_matches(' ');
    if name.is_empty() || !name.bytes().all(is_token) {
        return None;
    }
    let name = name.to_ascii_lowercase();
    let rest = rest.trim_start_matches(' ');
    let Some(quoted) = rest.strip_prefix('"') else {
        let end = rest.find([',', ' ']).unwrap_or(rest.len());
        return Some((name, rest[..end].to_owned(), &rest[end..]));
    };
    let (mut value, mut escaped) = (String::new(), false);
    for (at, c) in quoted.char_indices() {
        match c {
            _ if escaped => {
                value.push(c);
                escaped = false;
            }
            '\\' => escaped = true,
            '"' => return Some((name, value, &quoted[at + 1..])),
            c => value.push(c),
        }
    }
    None
}

/// Returns true if a byte is allowed in a token (RFC 9110, 5.6.2).
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bearer(realm: &str, service: &str) -> Challenge {
        Challenge::Bearer { realm: realm.into(), service: service.into() }
    }

    #[test]
    fn authentication_challenges_are_parsed() {
        let token = bearer("https://auth.example/token", "r.example");
        let table: [(&str, Vec<Challenge>); 19] = [
            ("Basic realm=\"x\"", vec![Challenge::Basic]),
            ("basic", vec![Challenge::Basic]),
            (
                "Bearer realm=\"https://auth.example/token\",service=\"r.example\",scope=\"repository:a:pull\"",
                vec![token.clone()],
            ),
            ("Bearer realm=https://auth.example/token, service=r.example", vec![token]),
            ("Basic realm=\"a, b\", Bearer realm=\"https://t/\"", vec![Challenge::Basic, bearer("https://t/", "")]),
            ("Bearer realm=\"a\\\"b\"", vec![bearer("a\"b", "")]),
            ("Bearer service=\"x\"", vec![]),
            ("Bearer realm=\"unended", vec![]),
            ("Negotiate abc==, Basic realm=\"x\"", vec![Challenge::Basic]),
            ("Negotiate a+b/c~d.e-f_g==, Basic realm=\"x\"", vec![Challenge::Basic]),
            ("Negotiate a+b/c ,Basic", vec![Challenge::Basic]),
            ("Negotiate realm==, Basic", vec![Challenge::Basic]),
            ("Negotiate, Basic realm=\"x\"", vec![Challenge::Basic]),
            ("Basic realm=\"x\", Negotiate a/b=", vec![Challenge::Basic]),
            ("NTLM !#=x, Basic realm=\"x\"", vec![Challenge::Basic]),
            ("Bearer realm = \"https://t/\" , service = s", vec![bearer("https://t/", "s")]),
            ("Bearer abc, realm=\"https://t/\"", vec![]),
            ("Negotiate a:b, Basic", vec![]),
            ("Negotiate a b, Basic", vec![]),
        ];
        for (header, expected) in table {
            assert_eq!(parse(header), expected, "{header}");
        }
        let mut headers = HeaderMap::new();
        assert_eq!(best(&headers), None);
        headers.append(WWW_AUTHENTICATE, "Basic realm=\"x\"".parse().unwrap());
        headers.append(WWW_AUTHENTICATE, "Bearer realm=\"https://t/\"".parse().unwrap());
        assert_eq!(best(&headers), Some(bearer("https://t/", "")));
    }

    #[test]
    fn parse_of_malformed_header_terminates() {
        for text in
            ["", ",", "=", "=,=", "a=", "a=\"", "Bearer ,,,=,", "x y z", "Bearer realm", "\\\"", "é=é", "Basic é"]
        {
            let _ = parse(text);
        }
    }
}
