//! Converts CPU requests to CPU weights (rule P49 of `docs/guides/kube-rules.md`).

use executor_core::quantity::Quantity;

/// Returns the weight for a CPU request (rule P49): `ceil(10^((L*L + 125*L)/612 - 7/34))` with L = log2 of the shares.
pub(crate) fn cpu_weight(request: Quantity) -> u32 {
    let shares = (request.millis().saturating_mul(1024) / 1000).clamp(2, 262_144);
    let l = (shares as f64).log2();
    let weight = 10f64.powf((l * l + 125.0 * l) / 612.0 - 7.0 / 34.0).ceil();
    (weight as u32).clamp(1, 10_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p49_cpu_request_determines_weight() {
        for (millis, weight) in [(100, 17), (250, 35), (500, 59), (1000, 100), (2000, 174), (8000, 532)] {
            assert_eq!(cpu_weight(Quantity::parse(&format!("{millis}m")).unwrap()), weight, "{millis}");
        }
    }
}
