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

/// Half the distance between the quartiles, in percent of the median: how far off a typical run is.
pub(crate) fn spread_percent(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let at = |q: f64| sorted[(q * last as f64).round() as usize];
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
    fn spread_ignores_one_outlier() {
        assert_eq!(spread_percent(&[10.0, 10.0, 10.0, 10.0, 900.0]), 0.0);
        assert_eq!(spread_percent(&[8.0, 9.0, 10.0, 11.0, 12.0]), 10.0);
    }
}
