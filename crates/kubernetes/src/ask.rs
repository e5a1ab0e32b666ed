//! What a pod asks for, in annotations or in the resource limits of its containers.
//!
//! | written as | is |
//! |---|---|
//! | `sluice.dev/gpu: "2"` | whole GPUs, or with a share that share of each of them |
//! | `sluice.dev/share: "0.25"` | a share of each GPU's compute |
//! | `sluice.dev/memory: 8Gi` | memory on each GPU |
//! | `sluice.dev/tier: basic` | how firmly it holds what it has |
//!
//! Resource limits are whole numbers (Kubernetes refuses fractions of extended resources), so only
//! `sluice.dev/gpu` and the aliases of other products are read from there.

use serde_json::Value;
use sluice_api::GPU_PPM;
use sluice_api::lease::NewLease;
use sluice_api::pool::Tier;

pub(crate) const GPU: &str = "sluice.dev/gpu";
const SHARE: &str = "sluice.dev/share";
const MEMORY: &str = "sluice.dev/memory";
const TIER: &str = "sluice.dev/tier";
const POOL: &str = "sluice.dev/pool";

/// Resources of NVIDIA's device plugin and of HAMi, and annotations of KAI.
const NVIDIA_GPU: &str = "nvidia.com/gpu";
const HAMI_MEMORY: &str = "nvidia.com/gpumem";
const HAMI_CORES: &str = "nvidia.com/gpucores";
const KAI_FRACTION: &str = "gpu-fraction";
const KAI_MEMORY: &str = "gpu-memory";

/// Other products' ways to ask for GPUs, which are read only where they were chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Alias {
    /// `nvidia.com/gpu`
    Nvidia,
    /// `nvidia.com/gpu` with `nvidia.com/gpumem` (MiB) and `nvidia.com/gpucores` (percent)
    Hami,
    /// The annotations `gpu-fraction` and `gpu-memory` (MiB)
    Kai,
}

/// A field of a pod that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {text:?} is not {expected}")]
pub(crate) struct BadField {
    field: String,
    text: String,
    expected: &'static str,
}

/// What was found in a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Found {
    gpus: Option<String>,
    share: Option<String>,
    /// Percent of a GPU's compute.
    cores: Option<String>,
    memory: Option<String>,
    memory_mib: Option<String>,
    tier: Option<String>,
    pool: Option<String>,
}

/// Returns the lease that a pod asks for, or nothing where it asks for none.
pub(crate) fn ask_of(pod: &Value, aliases: &[Alias]) -> Result<Option<NewLease>, BadField> {
    let annotations = &pod["metadata"]["annotations"];
    let annotated = |name: &str| annotations[name].as_str().map(str::to_owned);
    let limited = |name: &str| limit(pod, name);
    let mut found = Found {
        gpus: annotated(GPU).or_else(|| limited(GPU)),
        share: annotated(SHARE),
        memory: annotated(MEMORY),
        tier: annotated(TIER),
        pool: annotated(POOL),
        ..Found::default()
    };
    if aliases.contains(&Alias::Nvidia) || aliases.contains(&Alias::Hami) {
        found.gpus = found.gpus.or_else(|| limited(NVIDIA_GPU));
    }
    if aliases.contains(&Alias::Hami) {
        found.memory_mib = limited(HAMI_MEMORY);
        found.cores = limited(HAMI_CORES);
    }
    if aliases.contains(&Alias::Kai) {
        found.share = found.share.or_else(|| annotated(KAI_FRACTION));
        found.memory_mib = found.memory_mib.or_else(|| annotated(KAI_MEMORY));
    }
    match found {
        Found { gpus: None, share: None, cores: None, memory: None, memory_mib: None, .. } => Ok(None),
        found => found.lease().map(Some),
    }
}

/// The annotations that say the same as a lease: by them the controller asks, since the webhook
/// takes the resources out of the pod.
pub(crate) fn annotations(lease: &NewLease) -> Vec<(&'static str, String)> {
    let mut annotations = vec![
        (GPU, lease.gpus.to_string()),
        (SHARE, (f64::from(lease.share_ppm) / f64::from(GPU_PPM)).to_string()),
        (TIER, lease.tier.name().to_owned()),
    ];
    if lease.memory > 0 {
        annotations.push((MEMORY, lease.memory.to_string()));
    }
    annotations
}

/// The resources that name GPUs: no node has them, so they are taken out of the pod.
pub(crate) fn is_gpu_resource(name: &str, aliases: &[Alias]) -> bool {
    match name {
        GPU => true,
        NVIDIA_GPU => aliases.contains(&Alias::Nvidia) || aliases.contains(&Alias::Hami),
        HAMI_MEMORY | HAMI_CORES => aliases.contains(&Alias::Hami),
        _ => false,
    }
}

/// The containers of one lease are one program to it, so the largest limit counts. A limit of 0 is
/// none, as for the chart's expressions.
fn limit(pod: &Value, name: &str) -> Option<String> {
    let containers =
        ["containers", "initContainers"].into_iter().flat_map(|list| pod["spec"][list].as_array());
    let limits = containers.flatten().map(|container| &container["resources"]["limits"][name]);
    let texts = limits.filter_map(|limit| match limit {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    });
    texts.filter(|text| text != "0").max_by_key(|text| text.parse::<u64>().unwrap_or(0))
}

impl Found {
    fn lease(self) -> Result<NewLease, BadField> {
        let mut lease = NewLease::whole(1);
        if let Some(text) = self.gpus {
            lease.gpus = whole_number(GPU, &text, 1..=64)?;
        }
        if let Some(text) = self.cores {
            lease.share_ppm = whole_number(HAMI_CORES, &text, 1..=100)? * (GPU_PPM / 100);
        }
        if let Some(text) = self.share {
            lease.share_ppm = share_ppm(&text)?;
        }
        if let Some(text) = self.memory_mib {
            lease.memory = u64::from(whole_number(HAMI_MEMORY, &text, 1..=1 << 24)?) << 20;
        }
        if let Some(text) = self.memory {
            lease.memory =
                bytes(&text).ok_or_else(|| bad(MEMORY, &text, "an amount of memory such as 8Gi"))?;
        }
        if let Some(text) = self.tier {
            let expected = "one of premium, standard and basic";
            lease.tier = text.parse::<Tier>().map_err(|_| bad(TIER, &text, expected))?;
        }
        lease.pool = self.pool;
        Ok(lease)
    }
}

fn bad(field: &str, text: &str, expected: &'static str) -> BadField {
    BadField { field: field.to_owned(), text: text.to_owned(), expected }
}

fn whole_number(field: &str, text: &str, range: std::ops::RangeInclusive<u32>) -> Result<u32, BadField> {
    let number = text.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| bad(field, text, "a whole number in its range"))
}

/// `0.25` or `25%`, in millionths.
fn share_ppm(text: &str) -> Result<u32, BadField> {
    let (digits, scale) = text.strip_suffix('%').map_or((text, 1.0), |digits| (digits, 100.0));
    let ppm = digits.trim().parse::<f64>().map(|fraction| (fraction / scale * f64::from(GPU_PPM)).round());
    match ppm {
        Ok(ppm) if ppm >= 1.0 && ppm <= f64::from(GPU_PPM) => Ok(ppm as u32),
        _ => Err(bad(SHARE, text, "a share above 0 and at most 1, such as 0.25")),
    }
}

/// A quantity of Kubernetes, in bytes.
pub(crate) fn bytes(text: &str) -> Option<u64> {
    const SUFFIXES: [(&str, u64); 8] = [
        ("Ki", 1 << 10),
        ("Mi", 1 << 20),
        ("Gi", 1 << 30),
        ("Ti", 1 << 40),
        ("k", 1000),
        ("M", 1_000_000),
        ("G", 1_000_000_000),
        ("T", 1_000_000_000_000),
    ];
    let suffix = SUFFIXES.iter().find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?, *unit)));
    let (digits, unit) = suffix.unwrap_or((text, 1));
    let bytes = digits.parse::<f64>().ok()? * unit as f64;
    (bytes >= 1.0 && bytes < (1_u64 << 44) as f64).then_some(bytes as u64)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn annotated(annotations: Value) -> Value {
        json!({ "metadata": { "annotations": annotations } })
    }

    fn limited(limits: Value) -> Value {
        json!({ "spec": { "containers": [{ "resources": { "limits": limits } }] } })
    }

    #[test]
    fn a_pod_that_names_no_gpu_asks_for_none() {
        for pod in [annotated(json!({ "team": "red" })), limited(json!({ "cpu": "1", "nvidia.com/gpu": 1 }))]
        {
            assert_eq!(ask_of(&pod, &[]), Ok(None));
        }
        for none in [json!(0), json!("0")] {
            assert_eq!(ask_of(&limited(json!({ NVIDIA_GPU: none })), &[Alias::Nvidia]), Ok(None));
        }
        assert_eq!(ask_of(&annotated(json!({ TIER: "basic" })), &[]), Ok(None));
    }

    #[test]
    fn annotations_say_how_much() {
        let pod = annotated(json!({ GPU: "2", SHARE: "0.25", MEMORY: "1.5Gi", TIER: "basic", POOL: "a" }));
        let lease = ask_of(&pod, &[]).unwrap().unwrap();
        assert_eq!((lease.gpus, lease.share_ppm, lease.memory), (2, 250_000, 3 << 29));
        assert_eq!((lease.tier, lease.pool.as_deref()), (Tier::Basic, Some("a")));
    }

    #[test]
    fn aliases_are_read_where_they_were_chosen() {
        let hami = limited(json!({ NVIDIA_GPU: 1, HAMI_MEMORY: "3000", HAMI_CORES: 30 }));
        let lease = ask_of(&hami, &[Alias::Hami]).unwrap().unwrap();
        assert_eq!((lease.gpus, lease.share_ppm, lease.memory), (1, 300_000, 3000 << 20));
        let lease = ask_of(&hami, &[Alias::Nvidia]).unwrap().unwrap();
        assert_eq!((lease.share_ppm, lease.memory), (GPU_PPM, 0));
        let kai = annotated(json!({ KAI_FRACTION: "0.5", KAI_MEMORY: "2000" }));
        assert_eq!(ask_of(&kai, &[Alias::Hami]), Ok(None));
        let lease = ask_of(&kai, &[Alias::Kai]).unwrap().unwrap();
        assert_eq!((lease.share_ppm, lease.memory), (500_000, 2000 << 20));
    }

    #[test]
    fn a_field_that_makes_no_sense_is_named() {
        for (name, text) in [(SHARE, "2"), (SHARE, "NaN"), (GPU, "0"), (MEMORY, "lots"), (MEMORY, "1e300")] {
            let error = ask_of(&annotated(json!({ name: text })), &[]).unwrap_err().to_string();
            assert!(error.starts_with(name) && error.contains(text), "{error}");
        }
    }
}
