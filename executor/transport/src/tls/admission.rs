//! Verifies the certificates and the permission of a caller again while the caller is connected.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::pki_types::CertificateDer;
use tokio::sync::watch;
use tokio::time::sleep;

use super::certificates::{CertificatePolicy, Certificates, Validity};

/// Maximum interval between two reads of the system clock. A longer sleep could end long after the certificate has
/// expired: timers do not follow changes of the system clock, and stop while the host is suspended.
const CLOCK_INTERVAL_MAX: Duration = Duration::from_secs(60);

/// Certificate chain of a caller, and the files with which the chain was verified.
#[derive(Debug)]
pub struct Admission<R> {
    certificates: Arc<Certificates<R>>,
    chain: Vec<CertificateDer<'static>>,
    /// Earliest expiry of a certificate of the chain, in seconds since 1970.
    until: i64,
}

impl<R: CertificatePolicy> Admission<R> {
    pub(super) fn new(certificates: Arc<Certificates<R>>, chain: Vec<CertificateDer<'static>>) -> Self {
        let ends = chain.iter().map(|one| Validity::from_der(one).map_or(0, |validity| validity.until));
        let until = ends.min().unwrap_or_default();
        Self { certificates, chain, until }
    }

    /// Resolves with the reason when a new connection with the same certificates would be refused, or when `permission`
    /// returns an error. Both are checked at the start, after each change of the certificate files, and after each
    /// change that `rules` reports.
    pub async fn revoked<T>(
        self,
        mut rules: watch::Receiver<T>,
        permission: impl Fn() -> Result<(), String>,
    ) -> String {
        let mut files = self.certificates.subscribe();
        let mut is_due = true;
        loop {
            if is_due && let Err(why) = self.certificates.verify(&self.chain).and_then(|()| permission()) {
                return why;
            }
            let pause = time_left(self.until, now()).unwrap_or(CLOCK_INTERVAL_MAX).min(CLOCK_INTERVAL_MAX);
            tokio::select! {
                Ok(()) = rules.changed() => is_due = true,
                Ok(()) = files.changed() => is_due = true,
                () = sleep(pause) => is_due = time_left(self.until, now()).is_none(),
            }
        }
    }
}

/// Returns the system clock's time since 1970.
fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Returns the time until a certificate expires, or `None` if it has expired. A certificate is valid until the end of
/// its last second.
fn time_left(until: i64, now: Duration) -> Option<Duration> {
    let end = Duration::from_secs(u64::try_from(until).ok()?.saturating_add(1));
    end.checked_sub(now).filter(|left| !left.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificate_expires_after_its_last_second() {
        let at = |millis| time_left(100, Duration::from_millis(millis));
        assert_eq!(at(40_000), Some(Duration::from_secs(61)));
        assert_eq!(at(100_999), Some(Duration::from_millis(1)));
        assert_eq!(at(101_000), None);
        assert_eq!(at(500_000), None);
        assert_eq!(time_left(-1, Duration::ZERO), None);
    }
}
