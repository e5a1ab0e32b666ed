//! The ResourceSlices of the driver: each usable GPU of Sluice's server as a device that is
//! attached to the network, so that the scheduler may give it to pods on any machine.
//!
//! The slices say what there is, and the scheduler counts what claims take of it. Which GPU a lease
//! gets is the server's decision, so slices change with nodes and fences and not with leases.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sluice_api::client::Client;
use sluice_api::node::GpuStatus;
use sluice_api::pool::{PoolStatus, Tier};

use super::DRIVER;
use crate::api::{Api, Patch};

/// The capacities of a device. Shares are in percent: schedulers round fractions in the steps of a
/// capacity, unless a feature gate of Kubernetes 1.37 is on.
pub(super) const SHARE: &str = "share";
pub(super) const MEMORY: &str = "memory";
/// The only pool of devices, in Kubernetes' sense of the word.
pub(super) const POOL: &str = "sluice";

const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";
const CLASSES: &str = "/apis/resource.k8s.io/v1/deviceclasses";
/// The annotation with the hash of all slices: what the API server has changed is not a change.
const CONTENT: &str = "sluice.dev/content";
/// Devices in one slice, of the 128 that it may have.
const DEVICES_MAX: usize = 64;
/// Characters of a device's name, and of a text attribute.
const NAME_MAX: usize = 63;
const TEXT_MAX: usize = 64;
/// The step of memory that claims take.
const MEMORY_STEP: u64 = 64 << 20;
const PUBLISH_EVERY: Duration = Duration::from_secs(10);

/// Publishes devices from now on.
pub(crate) struct Publisher {
    pub(crate) api: Api,
    pub(crate) client: Client,
    /// The machines with the driver, as labels; all unless said.
    pub(crate) machines: Vec<(String, String)>,
}

impl Publisher {
    pub(crate) fn run(&self) {
        let mut said = String::new();
        loop {
            let problem = self.publish().err().map(|error| format!("{error:#}")).unwrap_or_default();
            if problem != said {
                let now = if problem.is_empty() { "devices are published" } else { &problem };
                eprintln!("sluice-kubernetes: {now}");
                said = problem;
            }
            std::thread::sleep(PUBLISH_EVERY);
        }
    }

    /// Makes the slices be as the server's GPUs are now.
    pub(super) fn publish(&self) -> Result<()> {
        let gpus: Vec<GpuStatus> = self.client.list("/gpus")?;
        let pools: Vec<PoolStatus> = self.client.list("/pools")?;
        let devices: Vec<Value> =
            gpus.iter().filter(|gpu| is_usable(gpu)).map(|gpu| device(gpu, &tiers(gpu, &pools))).collect();
        let published = self.published()?;
        let content = content(&devices, &self.machines);
        let count = devices.len().div_ceil(DEVICES_MAX).max(1);
        let is_current = |slice: &Value| slice["metadata"]["annotations"][CONTENT] == content.as_str();
        if published.len() == count && published.iter().all(is_current) {
            return Ok(());
        }
        let generations = published.iter().filter_map(|slice| slice["spec"]["pool"]["generation"].as_u64());
        let pool = json!({
            "name": POOL, "generation": generations.max().unwrap_or(0) + 1, "resourceSliceCount": count,
        });
        let names: Vec<&str> =
            published.iter().filter_map(|slice| slice["metadata"]["name"].as_str()).collect();
        for number in 0..count {
            let devices = devices.chunks(DEVICES_MAX).nth(number).unwrap_or_default();
            self.write(number, &names, &content, &pool, devices)?;
        }
        for name in names.iter().filter(|name| !(0..count).any(|number| **name == slice_name(number))) {
            self.api.delete(&format!("{SLICES}/{name}"))?;
        }
        Ok(())
    }

    fn published(&self) -> Result<Vec<Value>> {
        let list = self.api.get(&format!("{SLICES}?fieldSelector=spec.driver%3D{DRIVER}"))?;
        let ours = |slice: &&Value| slice["spec"]["driver"] == DRIVER;
        Ok(list["items"].as_array().into_iter().flatten().filter(ours).cloned().collect())
    }

    fn write(
        &self,
        number: usize,
        names: &[&str],
        content: &str,
        pool: &Value,
        devices: &[Value],
    ) -> Result<()> {
        let name = slice_name(number);
        let mut spec = json!({ "driver": DRIVER, "pool": pool, "devices": devices });
        if self.machines.is_empty() {
            spec["allNodes"] = true.into();
        } else {
            let wanted =
                |(key, value): &(String, String)| json!({ "key": key, "operator": "In", "values": [value] });
            let terms: Vec<Value> = self.machines.iter().map(wanted).collect();
            spec["nodeSelector"] = json!({ "nodeSelectorTerms": [{ "matchExpressions": terms }] });
        }
        let mut slice =
            json!({ "metadata": { "name": name, "annotations": { CONTENT: content } }, "spec": spec });
        if names.contains(&name.as_str()) {
            // A slice has one of both, and a merge patch keeps what it does not name.
            let other = if self.machines.is_empty() { "nodeSelector" } else { "allNodes" };
            slice["spec"][other] = Value::Null;
            return Ok(self.api.patch(&format!("{SLICES}/{name}"), Patch::Merge, &slice).map(drop)?);
        }
        // The class goes with the chart, and takes the slices along.
        let class = self.api.get(&format!("{CLASSES}/{DRIVER}"))?;
        let uid = class["metadata"]["uid"].as_str().context("the device class has no uid")?;
        slice["metadata"]["ownerReferences"] = json!([{ "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "name": DRIVER, "uid": uid }]);
        slice["apiVersion"] = "resource.k8s.io/v1".into();
        slice["kind"] = "ResourceSlice".into();
        Ok(self.api.post(SLICES, &slice).map(drop)?)
    }
}

fn slice_name(number: usize) -> String {
    format!("{DRIVER}-{number}")
}

/// What has to change for the slices to be written again.
fn content(devices: &[Value], machines: &[(String, String)]) -> String {
    let all = json!([devices, machines]).to_string();
    blake3::hash(all.as_bytes()).to_hex()[..32].to_owned()
}

fn is_usable(gpu: &GpuStatus) -> bool {
    gpu.online && gpu.fence.is_none() && gpu.gpu.memory >= MEMORY_STEP
}

/// The tiers that the GPU's pool serves now; all where the pool says nothing.
fn tiers(gpu: &GpuStatus, pools: &[PoolStatus]) -> Vec<Tier> {
    let pool = pools.iter().find(|pool| Some(&pool.declared.name) == gpu.pool.as_ref());
    match pool.map(|pool| pool.terms().tiers) {
        None | Some([]) => Tier::ALL.to_vec(),
        Some(tiers) => tiers.iter().map(|of| of.tier).collect(),
    }
}

/// The name of a GPU's device: that of its node, as a DNS label, and its index. A node whose name
/// is no label, or too long, gets a hash of it, so that no two have the same.
pub(super) fn device_name(gpu: &GpuStatus) -> String {
    let index = gpu.index.to_string();
    let label: String =
        gpu.node.to_lowercase().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let label = label.trim_matches('-');
    if label == gpu.node && label.len() + index.len() < NAME_MAX {
        return format!("{label}-{index}");
    }
    let hash = blake3::hash(gpu.node.as_bytes()).to_hex();
    let label: String = label.chars().take(NAME_MAX - 16 - index.len()).collect();
    format!("n{}-{}-{index}", &hash[..8], label.trim_matches('-'))
}

fn device(gpu: &GpuStatus, tiers: &[Tier]) -> Value {
    let text = |text: &str| json!({ "string": text.chars().take(TEXT_MAX).collect::<String>() });
    let mut attributes = json!({
        // Differs for each GPU, so that a claim can ask for several of them.
        "device": text(&device_name(gpu)),
        "node": text(&gpu.node),
        "model": text(&gpu.gpu.name),
        "software": { "bool": gpu.gpu.software },
        "gflops": { "int": i64::try_from(gpu.gpu.gflops).unwrap_or(i64::MAX) },
    });
    if let Some(pool) = &gpu.pool {
        attributes["pool"] = text(pool);
    }
    for tier in Tier::ALL {
        attributes[tier.name()] = json!({ "bool": tiers.contains(&tier) });
    }
    let memory = gpu.gpu.memory / MEMORY_STEP * MEMORY_STEP;
    json!({
        "name": device_name(gpu),
        "attributes": attributes,
        "allowMultipleAllocations": true,
        "capacity": {
            SHARE: {
                "value": "100",
                "requestPolicy": { "default": "100", "validRange": { "min": "1", "step": "1", "max": "100" } },
            },
            // 0 is the same part of the memory as of the compute.
            MEMORY: {
                "value": memory.to_string(),
                "requestPolicy": {
                    "default": "0",
                    "validRange": { "min": "0", "step": MEMORY_STEP.to_string(), "max": memory.to_string() },
                },
            },
        },
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::dra) fn gpu(node: &str, index: u32, model: &str) -> GpuStatus {
        let gpu = json!({
            "node": node, "address": "127.0.0.1:1", "online": true, "index": index, "name": model,
            "uuid": "GPU-1", "memory": 4_u64 << 30, "software": true, "compute_capability": "8.0",
            "driver_version": 12080, "share_leased_ppm": 0, "memory_leased": 0, "memory_used": 0, "busy_ppm": 0,
            "leases": 0,
        });
        serde_json::from_value(gpu).unwrap()
    }

    #[test]
    fn names_are_labels_and_differ() {
        assert_eq!(device_name(&gpu("gpu-1", 0, "A100")), "gpu-1-0");
        let long = "n".repeat(80);
        let odd =
            ["GPU-1", "gpu.1", "gpu_1", "-", long.as_str()].map(|node| device_name(&gpu(node, 12, "A100")));
        for name in &odd {
            assert!(name.len() <= NAME_MAX && !name.starts_with('-') && !name.ends_with('-'), "{name}");
            assert!(name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'), "{name}");
            assert_eq!(odd.iter().filter(|other| *other == name).count(), 1, "{odd:?}");
        }
    }

    #[test]
    fn a_device_can_be_shared_in_percent_and_in_steps_of_memory() {
        let device = device(&gpu("gpu-1", 0, "A100"), &[Tier::Basic]);
        assert_eq!(device["allowMultipleAllocations"], true);
        assert_eq!(device["attributes"]["basic"], json!({ "bool": true }));
        assert_eq!(device["attributes"]["premium"], json!({ "bool": false }));
        let number = |text: &Value| text.as_str().unwrap().parse::<u64>().unwrap();
        for name in [SHARE, MEMORY] {
            // The rules of the API server's validation.
            let capacity = &device["capacity"][name];
            let (policy, value) = (&capacity["requestPolicy"], number(&capacity["value"]));
            let [min, max, step] = ["min", "max", "step"].map(|bound| number(&policy["validRange"][bound]));
            let default = number(&policy["default"]);
            assert!(min <= default && default <= max && max <= value && min + step <= value, "{capacity}");
            assert!((default - min).is_multiple_of(step) && (max - min).is_multiple_of(step), "{capacity}");
        }
    }
}
