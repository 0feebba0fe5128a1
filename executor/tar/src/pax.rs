//! pax records: `LENGTH KEY=VALUE\n`, where the length counts the whole record and a value may contain any byte.

use crate::{Limits, TarError, Time, Xattrs};

/// Supported records of an entry.
#[derive(Default)]
pub(crate) struct Records {
    pub(crate) path: Option<Vec<u8>>,
    pub(crate) link: Option<Vec<u8>>,
    pub(crate) size: Option<u64>,
    pub(crate) uid: Option<u64>,
    pub(crate) gid: Option<u64>,
    pub(crate) mtime: Option<Time>,
    pub(crate) xattrs: Xattrs,
    pub(crate) sparse: Sparse,
    any: bool,
}

/// Sparse file in GNU's formats 0.0, 0.1 and 1.0.
#[derive(Default)]
pub(crate) struct Sparse {
    pub(crate) name: Option<Vec<u8>>,
    /// Size in bytes, holes included.
    pub(crate) size: Option<u64>,
    /// Offsets and lengths of the data regions, alternating.
    pub(crate) map: Vec<u64>,
    /// True if the list of data regions is at the beginning of the file's content.
    pub(crate) in_content: bool,
}

impl Records {
    /// Returns true if there are no records.
    pub(crate) fn is_empty(&self) -> bool {
        !self.any
    }

    pub(crate) fn parse(mut bytes: &[u8], limits: &Limits) -> Result<Self, TarError> {
        let mut records = Self { any: true, ..Self::default() };
        while !bytes.is_empty() {
            let (key, value, rest) = split(bytes).ok_or_else(|| damaged("a record without length, key or end"))?;
            records.take(key, value, limits)?;
            bytes = rest;
        }
        Ok(records)
    }

    fn take(&mut self, key: &[u8], value: &[u8], limits: &Limits) -> Result<(), TarError> {
        if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
            return self.take_xattr(name, value, limits);
        }
        let number = || decimal(value).ok_or_else(|| damaged("a record whose value is not a number"));
        match key {
            // An empty value cancels an earlier value.
            b"path" => self.path = (!value.is_empty()).then(|| value.to_vec()),
            b"linkpath" => self.link = (!value.is_empty()).then(|| value.to_vec()),
            b"size" => self.size = Some(number()?),
            b"uid" => self.uid = Some(number()?),
            b"gid" => self.gid = Some(number()?),
            b"mtime" => self.mtime = Some(time(value).ok_or_else(|| damaged("a record whose value is not a time"))?),
            b"GNU.sparse.name" => self.sparse.name = Some(value.to_vec()),
            b"GNU.sparse.size" | b"GNU.sparse.realsize" => self.sparse.size = Some(number()?),
            b"GNU.sparse.major" => self.sparse.in_content = number()? == 1,
            b"GNU.sparse.offset" | b"GNU.sparse.numbytes" => self.sparse.map.push(number()?),
            b"GNU.sparse.map" => {
                let numbers = value.split(|byte| *byte == b',').filter(|number| !number.is_empty()).map(decimal);
                let map: Option<Vec<u64>> = numbers.collect();
                self.sparse.map = map.ok_or_else(|| damaged("an invalid map of a sparse file"))?;
            }
            _ => {}
        }
        Ok(())
    }

    fn take_xattr(&mut self, name: &[u8], value: &[u8], limits: &Limits) -> Result<(), TarError> {
        if name.is_empty() || name.contains(&0) {
            return Err(damaged("an extended attribute without a name"));
        }
        for (what, found, limit) in [
            ("bytes of an extended attribute", value.len() as u64, limits.xattr),
            ("bytes of an extended attribute's name", name.len() as u64, limits.name),
            ("extended attributes", self.xattrs.len() as u64 + 1, limits.xattrs),
        ] {
            if found > limit {
                return Err(TarError::limit(name, what, found, limit));
            }
        }
        self.xattrs.push((name.to_vec(), value.to_vec()));
        Ok(())
    }
}

fn damaged(why: &str) -> TarError {
    TarError::damaged(b"", why)
}

/// Returns the key, the value, and the bytes after the record.
fn split(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = bytes.iter().take(20).position(|byte| *byte == b' ')?;
    let length = usize::try_from(decimal(&bytes[..space])?).ok()?;
    if length > bytes.len() || length < space + 2 {
        return None;
    }
    let (record, rest) = bytes.split_at(length);
    let record = record[space + 1..].strip_suffix(b"\n")?;
    let equals = record.iter().position(|byte| *byte == b'=')?;
    let (key, value) = (&record[..equals], &record[equals + 1..]);
    (!key.is_empty()).then_some((key, value, rest))
}

pub(crate) fn decimal(text: &[u8]) -> Option<u64> {
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| digits)?.parse().ok()
}

/// Parses seconds with any number of decimals, possibly negative: -0.5 is half a second before the epoch.
fn time(text: &[u8]) -> Option<Time> {
    let (negative, text) = text.strip_prefix(b"-").map_or((false, text), |text| (true, text));
    let (whole, fraction) = match text.iter().position(|byte| *byte == b'.') {
        Some(dot) => (&text[..dot], &text[dot + 1..]),
        None => (text, &b""[..]),
    };
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let seconds = i64::try_from(decimal(whole)?).ok()?;
    let nanoseconds =
        (0..9).fold(0, |value, at| value * 10 + fraction.get(at).map_or(0, |digit| u32::from(digit - b'0')));
    Some(match (negative, nanoseconds) {
        (false, _) => Time { seconds, nanoseconds },
        (true, 0) => Time { seconds: -seconds, nanoseconds: 0 },
        (true, _) => Time { seconds: -seconds - 1, nanoseconds: 1_000_000_000 - nanoseconds },
    })
}
