//! What Prometheus reads, by name and labels.

use std::fmt;

use opentelemetry::metrics::MeterProvider;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use prometheus::{Registry, TextEncoder};

/// A provider that observes this process.
pub struct Reader {
    registry: Registry,
    provider: SdkMeterProvider,
}

/// A page as it was read. With an address, only what has this address.
pub struct Page {
    lines: Vec<String>,
}

impl Reader {
    pub fn new() -> Self {
        let registry = Registry::new();
        let exporter = opentelemetry_prometheus::exporter().with_registry(registry.clone());
        let provider = SdkMeterProvider::builder().with_reader(exporter.build().unwrap()).build();
        slipring::metrics::observe(&provider.meter("test"));
        Self { registry, provider }
    }

    pub fn provider(&self) -> &SdkMeterProvider {
        &self.provider
    }

    pub fn read(&self) -> Page {
        let text = TextEncoder::new().encode_to_string(&self.registry.gather()).unwrap();
        let lines = text.lines().filter(|line| !line.starts_with('#')).map(String::from);
        Page { lines: lines.collect() }
    }
}

impl Page {
    pub fn at(&self, name: &str) -> Page {
        self.part(&format!("slipring_address=\"@{name}\""))
    }

    pub fn at_other(&self) -> Page {
        self.part("slipring_address=\"_OTHER\"")
    }

    fn part(&self, label: &str) -> Page {
        Page { lines: self.lines.iter().filter(|line| line.contains(label)).cloned().collect() }
    }

    fn series(&self, metric: &str, labels: &[(&str, &str)]) -> impl Iterator<Item = &String> {
        let start = format!("{metric}{{");
        let labels: Vec<String> =
            labels.iter().map(|(name, value)| format!("{name}=\"{value}\"")).collect();
        self.lines.iter().filter(move |line| {
            line.starts_with(&start) && labels.iter().all(|label| line.contains(label))
        })
    }

    /// Returns the sum of a metric's series with these labels.
    pub fn of(&self, metric: &str, labels: &[(&str, &str)]) -> f64 {
        let values = self.series(metric, labels).map(|line| line.rsplit_once(' ').unwrap().1);
        values.map(|value| value.parse::<f64>().unwrap()).sum()
    }

    pub fn has(&self, metric: &str, labels: &[(&str, &str)]) -> bool {
        self.count(metric, labels) > 0
    }

    pub fn count(&self, metric: &str, labels: &[(&str, &str)]) -> usize {
        self.series(metric, labels).count()
    }
}

impl fmt::Display for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines.join("\n"))
    }
}
