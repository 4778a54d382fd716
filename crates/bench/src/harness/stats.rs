//! Medians and spreads.

/// Median of `values`; NaN for none.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// Arithmetic mean; NaN for none.
pub(crate) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Standard deviation of a sample; NaN for less than two.
pub(crate) fn deviation(values: &[f64]) -> f64 {
    let (mean, n) = (mean(values), values.len() as f64);
    if n < 2.0 {
        return f64::NAN;
    }
    (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0)).sqrt()
}

/// The value that `share` of all are below; NaN for none.
pub(crate) fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    sorted.get((share * last as f64).round() as usize).copied().unwrap_or(f64::NAN)
}

/// Half the distance between the quartiles, in percent of the median: how far off a typical run is.
pub(crate) fn spread_percent(values: &[f64]) -> f64 {
    let at = |share| quantile(values, share);
    100.0 * (at(0.75) - at(0.25)) / 2.0 / median(values).abs().max(f64::MIN_POSITIVE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_even_and_none() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn mean_deviation_and_quantiles() {
        let values = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0];
        assert_eq!(mean(&values), 5.0);
        assert!((deviation(&values) - (32.0_f64 / 7.0).sqrt()).abs() < 1e-12);
        assert!(deviation(&[1.0]).is_nan());
        assert_eq!(quantile(&[3.0, 1.0, 2.0], 0.99), 3.0);
        assert!(quantile(&[], 0.5).is_nan());
    }

    #[test]
    fn spread_ignores_one_outlier() {
        assert_eq!(spread_percent(&[10.0, 10.0, 10.0, 10.0, 900.0]), 0.0);
        assert_eq!(spread_percent(&[8.0, 9.0, 10.0, 11.0, 12.0]), 10.0);
    }
}
