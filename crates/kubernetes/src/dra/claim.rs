//! What a ResourceClaim asks for, once the scheduler has allocated devices to it. Pure.

use serde::Deserialize;
use serde_json::Value;
use sluice_api::GPU_PPM;
use sluice_api::lease::NewLease;
use sluice_api::node::GpuStatus;
use sluice_api::pool::Tier;

use super::devices::{MEMORY, SHARE, device_name};
use super::{API_VERSION, DRIVER};
use crate::ask::bytes;

/// Millionths of a GPU in one percent, the unit of the capacity `share`.
const PERCENT_PPM: u32 = GPU_PPM / 100;

/// A claim that has devices of this driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) devices: Vec<Allocated>,
    config: Config,
}

/// A device that the scheduler has given to a request of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Allocated {
    pub(super) request: String,
    pub(super) pool: String,
    pub(super) device: String,
    pub(super) share_id: Option<String>,
    /// In percent; a whole GPU where the scheduler does not know shares.
    share: Option<String>,
    memory: Option<String>,
}

/// The opaque parameters of a claim or of its device class.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Config {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    /// How firmly the lease holds what it has.
    #[serde(default)]
    tier: Option<String>,
    /// Only GPUs of this pool.
    #[serde(default)]
    pool: Option<String>,
    /// Never more than the share, even while the GPU would idle.
    #[serde(default)]
    hard_cap: Option<bool>,
}

/// Says whether the object is the claim with this uid, and a pod may use it.
pub(super) fn is_in_use(claim: &Value, uid: &str) -> bool {
    let pods = claim["status"]["reservedFor"].as_array();
    claim["metadata"]["uid"] == uid && pods.is_some_and(|pods| !pods.is_empty())
}

impl Claim {
    pub(super) fn of(claim: &Value) -> Result<Claim, String> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let metadata = &claim["metadata"];
        let allocated = &claim["status"]["allocation"]["devices"];
        let results = allocated["results"].as_array().into_iter().flatten();
        let device = |result: &Value| Allocated {
            // One with alternatives is named REQUEST/ALTERNATIVE, and containers name the request.
            request: text(&result["request"]).split('/').next().unwrap_or_default().to_owned(),
            pool: text(&result["pool"]),
            device: text(&result["device"]),
            share_id: result["shareID"].as_str().map(str::to_owned),
            share: result["consumedCapacity"][SHARE].as_str().map(str::to_owned),
            memory: result["consumedCapacity"][MEMORY].as_str().map(str::to_owned),
        };
        let devices: Vec<Allocated> =
            results.filter(|result| result["driver"] == DRIVER).map(device).collect();
        if devices.is_empty() {
            return Err(format!("it has no device of {DRIVER}: it is not allocated"));
        }
        let mut config = Config::default();
        // Those of the class come first, so what a claim says replaces what its class says.
        for entry in allocated["config"].as_array().into_iter().flatten() {
            if entry["opaque"]["driver"] == DRIVER {
                config.add(&entry["opaque"]["parameters"])?;
            }
        }
        Ok(Claim {
            namespace: text(&metadata["namespace"]),
            name: text(&metadata["name"]),
            uid: text(&metadata["uid"]),
            devices,
            config,
        })
    }

    /// The lease for the claim: one task on GPUs of one node, as its devices are.
    pub(super) fn ask(&self, gpus: &[GpuStatus]) -> Result<NewLease, String> {
        let mut ask = NewLease::whole(u32::try_from(self.devices.len()).unwrap_or(u32::MAX));
        let [first, others @ ..] = self.devices.as_slice() else {
            return Err("it has no devices".to_owned());
        };
        if others.iter().any(|other| (&other.share, &other.memory) != (&first.share, &first.memory)) {
            return Err(
                "the GPUs of one claim have equal shares and memory; make a claim for each size".to_owned()
            );
        }
        ask.share_ppm = first.share_ppm()?;
        ask.memory = first.memory_bytes()?;
        let is_twice = |(place, device): (usize, &Allocated)| {
            self.devices[..place].iter().any(|other| other.device == device.device)
        };
        if self.devices.iter().enumerate().any(is_twice) {
            return Err(format!(
                "two devices of the claim are the same GPU; add the constraint distinctAttribute: \
                 {DRIVER}/device, or ask for one GPU with a larger share"
            ));
        }
        let known: Vec<&GpuStatus> =
            self.devices.iter().map(|device| device.gpu(gpus)).collect::<Result<_, _>>()?;
        let is_like = |gpu: &&GpuStatus| (&gpu.node, &gpu.gpu.name) == (&known[0].node, &known[0].gpu.name);
        if !known.iter().all(is_like) {
            return Err(format!(
                "the GPUs of one claim are on one node and of one model; add the constraint matchAttribute: \
                 {DRIVER}/node"
            ));
        }
        ask.models = vec![known[0].gpu.name.clone()];
        ask.pool = self.config.pool.clone().or_else(|| known[0].pool.clone());
        ask.hard_cap = self.config.hard_cap.unwrap_or(false);
        if let Some(tier) = &self.config.tier {
            ask.tier = tier
                .parse::<Tier>()
                .map_err(|_| format!("tier: {tier:?} is none of premium, standard and basic"))?;
        }
        Ok(ask)
    }
}

impl Config {
    fn add(&mut self, parameters: &Value) -> Result<(), String> {
        let added: Config = serde_json::from_value(parameters.clone())
            .map_err(|error| format!("the parameters of {DRIVER}: {error}"))?;
        if added.api_version != API_VERSION || added.kind != "LeaseConfig" {
            return Err(format!(
                "the parameters of {DRIVER} are {} {}; write apiVersion: {API_VERSION}, kind: LeaseConfig",
                added.api_version, added.kind
            ));
        }
        self.tier = added.tier.or(self.tier.take());
        self.pool = added.pool.or(self.pool.take());
        self.hard_cap = added.hard_cap.or(self.hard_cap);
        Ok(())
    }
}

impl Allocated {
    fn share_ppm(&self) -> Result<u32, String> {
        let Some(text) = &self.share else { return Ok(GPU_PPM) };
        let percent = text.parse().ok().filter(|percent| (1..=100).contains(percent));
        percent
            .map(|percent: u32| percent * PERCENT_PPM)
            .ok_or_else(|| format!("capacity {SHARE}: {text:?} is no whole number of percent from 1 to 100"))
    }

    /// 0 for the same part of the GPU's memory as of its compute.
    fn memory_bytes(&self) -> Result<u64, String> {
        match self.memory.as_deref() {
            None | Some("0") => Ok(0),
            Some(text) => {
                bytes(text).ok_or_else(|| format!("capacity {MEMORY}: {text:?} is no amount of memory"))
            }
        }
    }

    fn gpu<'a>(&self, gpus: &'a [GpuStatus]) -> Result<&'a GpuStatus, String> {
        let found = gpus.iter().find(|gpu| device_name(gpu) == self.device);
        found.ok_or_else(|| {
            format!("the server has no GPU {} any more; delete the pod, and it is placed anew", self.device)
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::devices::tests::gpu;
    use super::*;

    fn claim() -> Value {
        json!({
            "metadata": { "namespace": "red", "name": "quarter", "uid": "u" },
            "status": {
                "reservedFor": [{ "resource": "pods", "name": "train", "uid": "p" }],
                "allocation": { "devices": {
                    "results": [
                        { "driver": "other.example", "request": "nic", "pool": "x", "device": "nic-0" },
                        {
                            "driver": DRIVER, "request": "gpu", "pool": "sluice", "device": "gpu-1-0", "shareID": "s",
                            "consumedCapacity": { "share": "25", "memory": "8Gi" },
                        },
                    ],
                    "config": [
                        { "source": "FromClass", "opaque": { "driver": DRIVER, "parameters": {
                            "apiVersion": API_VERSION, "kind": "LeaseConfig", "tier": "basic", "hardCap": true,
                        } } },
                        { "source": "FromClaim", "opaque": { "driver": "other.example", "parameters": { "x": 1 } } },
                    ],
                } },
            },
        })
    }

    fn ask(claim: &Value) -> Result<NewLease, String> {
        Claim::of(claim)?.ask(&[gpu("gpu-1", 0, "A100"), gpu("gpu-1", 1, "A100"), gpu("gpu-2", 0, "H100")])
    }

    #[test]
    fn an_allocated_claim_is_a_lease() {
        let mut claim = claim();
        let lease = ask(&claim).unwrap();
        assert_eq!((lease.gpus, lease.share_ppm, lease.memory), (1, 250_000, 8 << 30));
        assert_eq!((lease.tier, lease.hard_cap, lease.models), (Tier::Basic, true, vec!["A100".to_owned()]));
        // The claim's own parameters replace those of its class.
        claim["status"]["allocation"]["devices"]["config"].as_array_mut().unwrap().push(json!({
            "source": "FromClaim", "opaque": { "driver": DRIVER, "parameters": {
                "apiVersion": API_VERSION, "kind": "LeaseConfig", "tier": "premium", "pool": "training",
            } },
        }));
        let lease = ask(&claim).unwrap();
        assert_eq!(
            (lease.tier, lease.hard_cap, lease.pool.as_deref()),
            (Tier::Premium, true, Some("training"))
        );
    }

    #[test]
    fn an_alternative_is_prepared_under_the_name_of_its_request() {
        let mut claim = claim();
        claim["status"]["allocation"]["devices"]["results"][1]["request"] = "gpu/large".into();
        assert_eq!(Claim::of(&claim).unwrap().devices[0].request, "gpu");
    }

    #[test]
    fn a_scheduler_without_consumable_capacity_gives_whole_gpus() {
        let mut claim = claim();
        claim["status"]["allocation"]["devices"]["results"][1]
            .as_object_mut()
            .unwrap()
            .remove("consumedCapacity");
        assert_eq!(ask(&claim).map(|lease| (lease.share_ppm, lease.memory)), Ok((GPU_PPM, 0)));
    }

    #[test]
    fn what_no_lease_can_be_is_refused_with_the_way_out() {
        let check = |pointer: &str, value: Value, part: &str| {
            let mut claim = claim();
            *claim.pointer_mut(pointer).unwrap() = value;
            let why = ask(&claim).unwrap_err();
            assert!(why.contains(part), "{part:?} is not in {why:?}");
        };
        let devices = "/status/allocation/devices";
        check(&format!("{devices}/results"), json!([]), "not allocated");
        check(&format!("{devices}/results/1/consumedCapacity/share"), "0".into(), "percent");
        check(&format!("{devices}/results/1/device"), "gone-0".into(), "gone-0");
        let parameters = format!("{devices}/config/0/opaque/parameters");
        check(&parameters, json!({ "apiVersion": API_VERSION, "kind": "Other" }), "kind: LeaseConfig");
        check(&format!("{parameters}/tier"), "gold".into(), "gold");
        check(
            &parameters,
            json!({ "apiVersion": API_VERSION, "kind": "LeaseConfig", "colour": 1 }),
            "colour",
        );
        let second = |device: &str, share: &str| {
            let capacity = json!({ "share": share, "memory": "8Gi" });
            json!([
                { "driver": DRIVER, "request": "a", "pool": "sluice", "device": "gpu-1-0", "consumedCapacity": { "share": "25", "memory": "8Gi" } },
                { "driver": DRIVER, "request": "b", "pool": "sluice", "device": device, "consumedCapacity": capacity },
            ])
        };
        check(&format!("{devices}/results"), second("gpu-1-1", "50"), "equal shares");
        check(&format!("{devices}/results"), second("gpu-2-0", "25"), "matchAttribute");
        check(&format!("{devices}/results"), second("gpu-1-0", "25"), "distinctAttribute");
        let mut claim = claim();
        claim["status"]["allocation"]["devices"]["results"] = second("gpu-1-1", "25");
        assert_eq!(ask(&claim).map(|lease| lease.gpus), Ok(2));
    }
}
