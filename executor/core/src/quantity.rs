//! Parses Kubernetes quantities exactly (rule P50 of docs/guides/kube-rules.md), for example `100m`, `1.5Gi` or `1e3`.

/// A quantity in thousandths, rounded away from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity {
    millis: i128,
}

/// Maximum number of digits of a quantity.
const DIGITS_MAX: usize = 30;

impl Quantity {
    /// Parses a quantity; `None` if the text is not a quantity.
    pub fn parse(text: &str) -> Option<Self> {
        let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
        let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(end);
        let (whole, part) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && part.is_empty()) || part.contains('.') || whole.len() + part.len() > DIGITS_MAX {
            return None;
        }
        let mantissa: i128 = format!("0{whole}{part}").parse().ok()?;
        let mut places = i32::try_from(part.len()).ok()?;
        let mut factor: i128 = 1;
        match suffix {
            "n" => places += 9,
            "u" => places += 6,
            "m" => places += 3,
            "" => {}
            "k" => places -= 3,
            "M" => places -= 6,
            "G" => places -= 9,
            "T" => places -= 12,
            "P" => places -= 15,
            "E" => places -= 18,
            "Ki" => factor = 1 << 10,
            "Mi" => factor = 1 << 20,
            "Gi" => factor = 1 << 30,
            "Ti" => factor = 1 << 40,
            "Pi" => factor = 1 << 50,
            "Ei" => factor = 1 << 60,
            _ => {
                let exponent = suffix.strip_prefix(['e', 'E'])?;
                let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
                if digits.is_empty() || digits.len() > 3 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
                    return None;
                }
                places -= exponent.parse::<i32>().ok()?;
            }
        }
        // Convert to thousandths.
        places -= 3;
        let scaled = mantissa.checked_mul(factor)?;
        let millis = if places <= 0 {
            scaled.checked_mul(10i128.checked_pow(places.unsigned_abs())?)?
        } else {
            match 10i128.checked_pow(places.unsigned_abs()) {
                Some(divisor) => scaled / divisor + i128::from(scaled % divisor != 0),
                None => i128::from(scaled != 0),
            }
        };
        Some(Self { millis: if text.starts_with('-') { -millis } else { millis } })
    }

    /// Creates a quantity of whole units.
    pub fn from_units(units: u64) -> Self {
        Self { millis: i128::from(units) * 1000 }
    }

    /// Returns the thousandths, capped at [`u64::MAX`]; 0 for negative quantities.
    pub fn millis(self) -> u64 {
        u64::try_from(self.millis.max(0)).unwrap_or(u64::MAX)
    }

    /// Returns the quantity in whole units, rounded up.
    pub fn units(self) -> u64 {
        let up = self.millis.max(0).saturating_add(999) / 1000;
        u64::try_from(up).unwrap_or(u64::MAX)
    }

    /// Returns true if the quantity is below 0.
    pub fn is_negative(self) -> bool {
        self.millis < 0
    }

    /// Returns the quotient, rounded up (rule P21). `None` if the quantity is negative or the divisor is not positive.
    pub fn divided_by(self, divisor: Self) -> Option<u64> {
        if divisor.millis <= 0 || self.millis < 0 {
            return None;
        }
        let quotient = self.millis / divisor.millis + i128::from(self.millis % divisor.millis != 0);
        u64::try_from(quotient).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p50_quantities_are_exact() {
        let units = |text: &str| Quantity::parse(text).map(Quantity::units);
        let table = [
            ("1", 1),
            ("1500m", 2),
            ("128Mi", 134_217_728),
            ("1.5Gi", 1_610_612_736),
            ("1e3", 1000),
            ("1E3", 1000),
            ("2k", 2000),
            ("0.5", 1),
            ("1E", 1_000_000_000_000_000_000),
            ("1Ei", 1 << 60),
            ("100n", 1),
            (".5Ki", 512),
            ("5.", 5),
            ("12e-1", 2),
            ("+1", 1),
        ];
        for (text, expected) in table {
            assert_eq!(units(text), Some(expected), "{text}");
        }
        for text in [
            "",
            "m",
            "1K",
            "1 Gi",
            "1Gib",
            "0x10",
            "e3",
            "1e",
            "1e+",
            "--1",
            "1.2.3",
            "9999999999999999999999999999999999",
        ] {
            assert_eq!(units(text), None, "{text}");
        }
        assert_eq!((Quantity::parse("100m").unwrap().millis(), Quantity::parse("0.1m").unwrap().millis()), (100, 1));
        assert!(Quantity::parse("-1").unwrap().is_negative());
        let mebibytes = Quantity::parse("129Mi").unwrap().divided_by(Quantity::parse("2Mi").unwrap());
        assert_eq!((mebibytes, Quantity::from_units(1).divided_by(Quantity::from_units(0))), (Some(65), None));
    }
}
