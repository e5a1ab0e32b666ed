//! Declarations of metrics, and the page that their samples are written to.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

/// The declaration of a metric: what `docs/metrics.md` says of it, and what stands before its
/// samples.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Without its unit and without the `_total` of a counter: the encoder appends both.
    name: &'static str,
    unit: Option<&'static str>,
    help: &'static str,
    kind: MetricType,
}

impl Metric {
    /// A value that goes up and down.
    pub const fn gauge(name: &'static str, help: &'static str) -> Metric {
        Metric { name, unit: None, help, kind: MetricType::Gauge }
    }

    /// A sum that only grows while its series lives.
    pub const fn counter(name: &'static str, help: &'static str) -> Metric {
        Metric { name, unit: None, help, kind: MetricType::Counter }
    }

    /// How many values lie where.
    pub const fn histogram(name: &'static str, help: &'static str) -> Metric {
        Metric { name, unit: None, help, kind: MetricType::Histogram }
    }

    /// A value under a name that another exporter has made known, exactly as that exporter writes
    /// it: a counter by OpenMetrics' rules would get the suffix `_total`.
    pub const fn foreign(name: &'static str, help: &'static str) -> Metric {
        Metric { name, unit: None, help, kind: MetricType::Unknown }
    }

    /// Gives the metric a base unit, such as `seconds`, with which its name ends.
    pub const fn of(self, unit: &'static str) -> Metric {
        Metric { unit: Some(unit), ..self }
    }
}

/// The sample of a histogram.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    pub sum: f64,
    /// Upper bounds, each with the number of values above the bound before and up to this one.
    pub buckets: Vec<(f64, u64)>,
    /// The number of values above all bounds.
    pub beyond: u64,
}

/// One scrape's answer under construction.
#[derive(Debug)]
pub struct Page<'a>(DescriptorEncoder<'a>);

impl<'a> Page<'a> {
    pub fn new(encoder: DescriptorEncoder<'a>) -> Page<'a> {
        Page(encoder)
    }

    /// Writes a metric with one sample for each set of labels; a metric without samples is left out
    /// altogether.
    pub fn family<L: EncodeLabelSet>(
        &mut self,
        metric: &Metric,
        samples: impl IntoIterator<Item = (L, f64)>,
    ) -> fmt::Result {
        self.each(metric, samples, |mut sample, value| match metric.kind {
            MetricType::Counter => sample.encode_counter::<NoLabelSet, f64, f64>(&value, None),
            _ => sample.encode_gauge(&value),
        })
    }

    /// Writes a histogram with one sample for each set of labels, or leaves it out, as
    /// [`Page::family`] does.
    pub fn histogram<L: EncodeLabelSet>(
        &mut self,
        metric: &Metric,
        samples: impl IntoIterator<Item = (L, Histogram)>,
    ) -> fmt::Result {
        self.each(metric, samples, |mut sample, Histogram { sum, buckets, beyond }| {
            let count = buckets.iter().map(|(_, count)| count).sum::<u64>() + beyond;
            let buckets: Vec<(f64, u64)> = buckets.into_iter().chain([(f64::INFINITY, beyond)]).collect();
            sample.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
        })
    }

    /// Writes a metric's declaration and has `encode` write each sample, if there is one.
    fn each<L: EncodeLabelSet, V>(
        &mut self,
        metric: &Metric,
        samples: impl IntoIterator<Item = (L, V)>,
        encode: impl Fn(MetricEncoder<'_>, V) -> fmt::Result,
    ) -> fmt::Result {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_none() {
            return Ok(());
        }
        let unit = metric.unit.map(|unit| Unit::Other(unit.into()));
        let mut family = self.0.encode_descriptor(metric.name, metric.help, unit.as_ref(), metric.kind)?;
        samples.try_for_each(|(labels, value)| encode(family.encode_family(&labels)?, value))
    }

    /// Writes a metric with one sample and no labels, if there is a value.
    pub fn single(&mut self, metric: &Metric, value: impl Into<Option<f64>>) -> fmt::Result {
        const NO_LABELS: [(&str, &str); 0] = [];
        self.family(metric, value.into().map(|value| (NO_LABELS, value)))
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::collector::Collector;
    use prometheus_client::registry::Registry;

    use super::*;
    use crate::Format;

    const SECONDS: Metric = Metric::counter("sluice_test_gpu", "GPU time").of("seconds");
    const FOREIGN: Metric = Metric::foreign("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "Energy in mJ");
    const WAITS: Metric = Metric::histogram("sluice_test_wait", "Waits").of("seconds");
    const EMPTY: Metric = Metric::gauge("sluice_test_empty", "Nothing");

    #[derive(Debug)]
    struct Sample;

    impl Collector for Sample {
        fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
            let mut page = Page::new(encoder);
            let hostile = "a\"b\\c\nd\u{1b}[31m";
            page.family(&SECONDS, [([("tenant", hostile)], 1.5), ([("tenant", "b")], 0.000_000_001)])?;
            let waits = Histogram { sum: 2.5, buckets: vec![(0.1, 2)], beyond: 1 };
            page.histogram(&WAITS, [([("tenant", "b")], waits)])?;
            page.single(&FOREIGN, 7.0)?;
            page.single(&EMPTY, None)
        }
    }

    #[test]
    fn samples_have_their_names_and_hostile_labels_stay_one_line() {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Sample));
        let open = Format::OpenMetrics.encode(&registry).unwrap();
        let lines: Vec<&str> = open.lines().collect();
        for line in [
            "# TYPE sluice_test_gpu_seconds counter",
            "# UNIT sluice_test_gpu_seconds seconds",
            "sluice_test_gpu_seconds_total{tenant=\"a\\\"b\\\\c\\nd\u{1b}[31m\"} 1.5",
            "# TYPE sluice_test_wait_seconds histogram",
            "sluice_test_wait_seconds_sum{tenant=\"b\"} 2.5",
            "sluice_test_wait_seconds_count{tenant=\"b\"} 3",
            "sluice_test_wait_seconds_bucket{le=\"0.1\",tenant=\"b\"} 2",
            "sluice_test_wait_seconds_bucket{le=\"+Inf\",tenant=\"b\"} 3",
            "# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION unknown",
            "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION 7.0",
        ] {
            assert!(lines.contains(&line), "{line} in\n{open}");
        }
        assert_eq!(lines.last(), Some(&"# EOF"));
        assert!(!open.contains("sluice_test_empty"), "{open}");
        let older = Format::Prometheus.encode(&registry).unwrap();
        assert!(older.contains("# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION untyped"), "{older}");
    }
}
