//! Kubernetes: pods and their leases, and what the Helm chart renders, refuses and allows.

mod pods;
mod tools;

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::e2e::Test;
use crate::process;
use crate::python::KUBERNETES;

pub(crate) const TESTS: &[Test] =
    &[("kubernetes: pods get leases, wait and end", pods::pods_get_leases_wait_and_end)];

pub(crate) const LONG_TESTS: &[Test] = &[
    ("kubernetes: the chart renders what Kubernetes accepts", the_chart_renders),
    ("kubernetes: the chart refuses wrong values", wrong_values_are_refused),
    ("kubernetes: pods are restricted, and rights are few", pods_are_restricted),
];

/// Versions whose schemas the manifests are checked against.
const VERSIONS: [&str; 5] = ["1.33", "1.34", "1.35", "1.36", "1.37"];

/// Ways to install the chart.
const VARIANTS: [&[&str]; 4] = [
    &[],
    &["server.enabled=false", "server.url=https://sluice.example:7580", "node.enabled=false"],
    &["controller.aliases={nvidia,hami,kai}", "controller.ptx=true", "controller.tenants.red=acme/red"],
    &[
        "server.listenHost=[::]",
        "node.runtimeClassName=nvidia",
        "node.nodeSelector.gpu=yes",
        "image.pullSecrets={key}",
    ],
];

fn chart() -> PathBuf {
    crate::root().join("deploy/helm/sluice")
}

fn helm(command: &str, values: &[&str]) -> Result<Command> {
    let mut helm = Command::new(tools::helm()?);
    helm.arg(command);
    if command == "template" {
        helm.args(["sluice", "--namespace", "sluice-system"]);
    }
    helm.arg(chart());
    values.iter().for_each(|value| _ = helm.args(["--set", value]));
    Ok(helm)
}

fn the_chart_renders() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let validate = KUBERNETES.program("kubernetes-validate")?;
    for (number, values) in VARIANTS.iter().enumerate() {
        process::output_of(&mut helm("lint", values)?)?;
        let file = folder.path().join(format!("{number}.yaml"));
        std::fs::write(&file, process::output_of(&mut helm("template", values)?)?)?;
        for version in VERSIONS {
            let mut check = Command::new(&validate);
            process::output_of(check.args(["--strict", "-k", version]).arg(&file))?;
        }
    }
    Ok(())
}

fn wrong_values_are_refused() -> Result<()> {
    for (value, named) in [
        ("controller.holdSeconds=0", "holdSeconds"),
        ("controller.aliases={unknown}", "aliases"),
        ("server.enabled=false", "url"),
        ("nodes.enabled=true", "nodes"),
    ] {
        let output = helm("template", &[value])?.output()?;
        let message = String::from_utf8_lossy(&output.stderr);
        ensure!(!output.status.success() && message.contains(named), "{value}: {message}");
    }
    Ok(())
}

fn pods_are_restricted() -> Result<()> {
    let objects = rendered(&[])?;
    let of_kind = |kind: &'static str| objects.iter().filter(move |object| object["kind"] == kind);
    for object in of_kind("Deployment").chain(of_kind("StatefulSet")) {
        restricted(&object["spec"]["template"]["spec"])
            .with_context(|| object["metadata"]["name"].to_string())?;
    }
    let role = of_kind("ClusterRole").next().context("a role")?;
    let rules = role["rules"].as_array().context("rules")?;
    for rule in rules {
        ensure!(!rule.to_string().contains('*'), "{rule}");
        let is_about =
            |resource: &str| rule["resources"].as_array().is_some_and(|all| all.contains(&resource.into()));
        ensure!(!is_about("secrets") || rule["verbs"] == serde_json::json!(["create"]), "{rule}");
    }
    let webhook = of_kind("MutatingWebhookConfiguration").next().context("a webhook")?;
    let webhook = &webhook["webhooks"][0];
    ensure!(webhook["failurePolicy"] == "Ignore" && webhook["matchConditions"].is_array(), "{webhook}");
    Ok(())
}

/// Fails unless a pod meets the Pod Security Standard "restricted".
fn restricted(pod: &Value) -> Result<()> {
    let security = &pod["securityContext"];
    ensure!(
        security["runAsNonRoot"] == true && security["seccompProfile"]["type"] == "RuntimeDefault",
        "{security}"
    );
    for container in pod["containers"].as_array().context("containers")? {
        let security = &container["securityContext"];
        ensure!(security["allowPrivilegeEscalation"] == false, "{security}");
        ensure!(security["capabilities"]["drop"][0] == "ALL", "{security}");
        ensure!(security["readOnlyRootFilesystem"] == true, "{security}");
    }
    let volumes = pod["volumes"].as_array().into_iter().flatten();
    for volume in volumes {
        ensure!(volume["hostPath"].is_null(), "{volume}");
    }
    Ok(())
}

/// The objects of the chart.
fn rendered(values: &[&str]) -> Result<Vec<Value>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("chart.yaml");
    std::fs::write(&file, process::output_of(&mut helm("template", values)?)?)?;
    let mut convert = Command::new(KUBERNETES.ready()?);
    let program = "import json, sys, yaml; json.dump([d for d in yaml.safe_load_all(open(sys.argv[1])) if d], sys.stdout)";
    Ok(serde_json::from_str(&process::output_of(convert.args(["-c", program]).arg(&file))?)?)
}
