//! The two text formats that scrapers ask for.

use std::fmt;

use prometheus_client::encoding::{prometheus_text, text};
use prometheus_client::registry::Registry;

/// A text format of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// The older format of Prometheus, version 0.0.4, which `curl` and `promtool check metrics`
    /// get.
    Prometheus,
}

impl Format {
    /// The format that a request's `Accept` header prefers. A scraper of OpenMetrics names it
    /// first.
    pub fn accepted(accept: Option<&str>) -> Format {
        match accept.is_some_and(|accept| accept.contains("application/openmetrics-text")) {
            true => Format::OpenMetrics,
            false => Format::Prometheus,
        }
    }

    pub fn content_type(self) -> &'static str {
        match self {
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Prometheus => prometheus_text::CONTENT_TYPE,
        }
    }

    pub fn encode(self, registry: &Registry) -> Result<String, fmt::Error> {
        let mut page = String::new();
        match self {
            Format::OpenMetrics => text::encode(&mut page, registry)?,
            Format::Prometheus => prometheus_text::encode(&mut page, registry)?,
        }
        Ok(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scraper_gets_the_format_that_it_asks_for() {
        let prometheus =
            "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        for (accept, format) in [
            (Some(prometheus), Format::OpenMetrics),
            (Some("*/*"), Format::Prometheus),
            (None, Format::Prometheus),
        ] {
            assert_eq!(Format::accepted(accept), format, "{accept:?}");
        }
    }
}
