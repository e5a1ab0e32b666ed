use sluice_metrics::Format;

use super::*;
use crate::arbiter::{PromisedWaits, Waits};
use crate::registry::readings::{LeaseName, LeaseNow, LeaseReading};
use sluice_wire::control::GpuStatus;

fn page(snapshot: Snapshot) -> String {
    let mut metrics = Metrics::default();
    metrics.register_collector(Box::new(snapshot));
    Format::OpenMetrics.encode(&metrics).unwrap()
}

fn gpu(is_software: bool) -> GpuStatus {
    GpuStatus {
        index: 0,
        name: "a \"GPU\"\nof mine".into(),
        uuid: [0x11; 16],
        memory: 4 << 30,
        memory_leased: 2 << 30,
        memory_used: 1 << 30,
        share_leased_ppm: 500_000,
        sessions: 1,
        is_software,
        driver_version: 12_040,
        compute_capability: (9, 0),
        busy_ppm: 250_000,
    }
}

fn lease(number: u64) -> LeaseReading {
    LeaseReading {
        name: LeaseName {
            lease: number,
            attempt: 1,
            task: 0,
            tenant: "acme/research".into(),
            tier: "standard".into(),
            pool: "default".into(),
        },
        used_ns: 1_500_000_001,
        reserved_ns: 2_000_000_000,
        waits: Waits {
            total_ns: 750_000_000,
            turns_ns: 250_000_000,
            counts: [0, 0, 0, 3, 0, 1, 0, 0, 0, 0],
            promised: PromisedWaits { waits: 3, within: 2 },
        },
        bytes_in: 7,
        now: Some(LeaseNow {
            gpus: 1,
            share_ppm: 250_000,
            received_ppm: 240_000,
            round_trip_us: 250,
            ..LeaseNow::default()
        }),
        ..LeaseReading::default()
    }
}

fn readings(gpus: Vec<GpuStatus>, leases: Vec<LeaseReading>) -> Readings {
    Readings { gpus, leases, omitted: 0 }
}

#[test]
fn a_software_gpu_says_what_is_known_of_it_and_nothing_else() {
    let page = page(Snapshot {
        readings: readings(vec![gpu(true)], vec![]),
        node: "n".into(),
        ..Snapshot::default()
    });
    let labels = "gpu=\"0\",UUID=\"GPU-11111111-1111-1111-1111-111111111111\",modelName=\"a \\\"GPU\\\"\\nof mine\",Hostname=\"n\"";
    for line in [
        format!("DCGM_FI_DEV_GPU_UTIL{{{labels}}} 25.0"),
        format!("DCGM_FI_DEV_FB_USED{{{labels}}} 1024.0"),
        format!("DCGM_FI_DEV_FB_FREE{{{labels}}} 3072.0"),
        format!("sluice_gpu_share_leased_ratio{{{labels}}} 0.5"),
    ] {
        assert!(page.lines().any(|found| found == line), "{line} in\n{page}");
    }
    for absent in ["TEMP", "POWER", "CLOCK", "XID"] {
        assert!(!page.contains(absent), "{absent} in\n{page}");
    }
}

#[test]
fn a_card_says_what_nvml_says_in_the_units_of_dcgm_exporter() {
    let figures = Figures {
        temperature_c: Some(61),
        power_mw: Some(123_400),
        memory_used: Some(3 << 20),
        driver_version: Some("550.54.15".into()),
        ..Figures::default()
    };
    let snapshot = Snapshot {
        readings: readings(vec![gpu(false)], vec![]),
        figures: [(0, figures)].into(),
        faults: [(0, 2)].into(),
        ..Snapshot::default()
    };
    let page = page(snapshot);
    let value = |name: &str| {
        let line = page.lines().find(|line| line.starts_with(&format!("{name}{{"))).map(str::to_owned);
        line.map(|line| line.rsplit_once(' ').unwrap().1.to_owned())
    };
    let expect = [
        ("DCGM_FI_DEV_GPU_TEMP", Some("61.0")),
        ("DCGM_FI_DEV_POWER_USAGE", Some("123.4")),
        ("DCGM_FI_DEV_FB_USED", Some("3.0")),
        ("DCGM_FI_DEV_XID_ERRORS", Some("0.0")),
        ("sluice_gpu_faults_total", Some("2.0")),
        ("DCGM_FI_DEV_SM_CLOCK", None),
        ("DCGM_FI_DEV_GPU_UTIL", None),
    ];
    for (name, expect) in expect {
        assert_eq!(value(name).as_deref(), expect, "{name}\n{page}");
    }
    assert!(
        page.contains("DCGM_FI_DRIVER_VERSION=\"550.54.15\"") && page.contains("device=\"nvidia0\""),
        "{page}"
    );
}

#[test]
fn a_lease_that_has_ended_keeps_its_counters_and_loses_its_gauges() {
    let ended = LeaseReading { now: None, ..lease(2) };
    let page = page(Snapshot { readings: readings(vec![], vec![lease(1), ended]), ..Snapshot::default() });
    let labels = |lease| {
        format!(
            "lease=\"{lease}\",attempt=\"1\",task=\"0\",tenant=\"acme/research\",tier=\"standard\",pool=\"default\""
        )
    };
    for line in [
        format!("sluice_lease_gpu_seconds_total{{{}}} 1.500000001", labels(1)),
        format!("sluice_lease_gpu_seconds_total{{{}}} 1.500000001", labels(2)),
        format!("sluice_lease_turn_wait_seconds_bucket{{le=\"0.005\",{}}} 3", labels(1)),
        format!("sluice_lease_turn_wait_seconds_bucket{{le=\"+Inf\",{}}} 4", labels(2)),
        format!("sluice_lease_promised_waits_total{{{}}} 3.0", labels(1)),
        format!("sluice_lease_promised_waits_within_total{{{}}} 2.0", labels(1)),
        format!("sluice_lease_turn_wait_seconds_sum{{{}}} 0.25", labels(1)),
        format!("sluice_lease_throttled_seconds_total{{{}}} 0.75", labels(1)),
        format!("sluice_lease_share_guaranteed_ratio{{{}}} 0.25", labels(1)),
        format!("sluice_lease_rtt_seconds{{{}}} 0.00025", labels(1)),
        format!("sluice_lease_link_bytes_total{{{},direction=\"received\"}} 7.0", labels(1)),
    ] {
        assert!(page.lines().any(|found| found == line), "{line} in\n{page}");
    }
    assert!(!page.contains(&format!("sluice_lease_sessions{{{}}}", labels(2))), "{page}");
}

#[test]
fn thousands_of_leases_are_one_short_page() {
    let leases: Vec<_> = (0..5_000).map(lease).collect();
    let page = page(Snapshot { readings: readings(vec![gpu(true); 16], leases), ..Snapshot::default() });
    assert_eq!(
        page.lines().filter(|line| line.starts_with("sluice_lease_gpu_seconds_total{")).count(),
        5_000
    );
}

#[test]
fn all_metrics_are_explained() {
    let figures = serde_json::json!({
        "sm_clock_mhz": 1, "memory_clock_mhz": 1, "temperature_c": 1, "power_mw": 1, "energy_mj": 1, "pcie_replays": 1,
        "busy_percent": 1, "memory_busy_percent": 1, "encoder_percent": 1, "decoder_percent": 1, "memory_free": 1,
        "memory_used": 1, "memory_reserved": 1, "remapped_correctable": 1, "remapped_uncorrectable": 1,
        "remap_failed": false, "xid": 1, "driver_version": "550", "pci_bus_id": "0"
    });
    let snapshot = Snapshot {
        readings: readings(vec![gpu(false)], vec![lease(1)]),
        figures: [(0, serde_json::from_value(figures).unwrap())].into(),
        journal: Some((0, false)),
        certificate_ends_s: Some(1),
        ..Snapshot::default()
    };
    let mut metrics = Metrics::default();
    metrics.register_collector(Box::new(snapshot));
    let page = Format::Prometheus.encode(&metrics).unwrap();
    let names: Vec<&str> =
        page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    assert!(names.len() > 40, "{names:?}");
    let document = include_str!("../../../../docs/metrics.md");
    for name in names {
        assert!(document.contains(&format!("| `{name}` |")), "docs/metrics.md does not have {name}");
    }
}
