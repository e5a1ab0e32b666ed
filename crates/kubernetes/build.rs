//! Generates the gRPC services of the kubelet: those of device plugins, and those of drivers for
//! dynamic resource allocation. Their messages stand beside the code that uses them, so no compiler
//! for protocol files is needed.

use tonic_build::manual::{Builder, Method, Service};

fn main() {
    let plugin = Api { package: "v1beta1", messages: "crate::plugin::messages" };
    let watch = Method::builder()
        .name("list_and_watch")
        .route_name("ListAndWatch")
        .input_type(plugin.message("Empty"))
        .output_type(plugin.message("ListAndWatchResponse"))
        .codec_path(CODEC)
        .server_streaming()
        .build();
    let registry = Api { package: "pluginregistration", messages: "crate::dra::messages" };
    let driver = Api { package: "k8s.io.kubelet.pkg.apis.dra.v1", messages: "crate::dra::messages" };
    Builder::new().compile(&[
        plugin.service("Registration", [("Register", "RegisterRequest", "Empty")]).build(),
        plugin
            .service(
                "DevicePlugin",
                [
                    ("GetDevicePluginOptions", "Empty", "DevicePluginOptions"),
                    ("GetPreferredAllocation", "PreferredAllocationRequest", "PreferredAllocationResponse"),
                    ("Allocate", "AllocateRequest", "AllocateResponse"),
                    ("PreStartContainer", "PreStartContainerRequest", "PreStartContainerResponse"),
                ],
            )
            .method(watch)
            .build(),
        registry
            .service(
                "Registration",
                [
                    ("GetInfo", "InfoRequest", "PluginInfo"),
                    ("NotifyRegistrationStatus", "RegistrationStatus", "RegistrationStatusResponse"),
                ],
            )
            .build(),
        driver
            .service(
                "DRAPlugin",
                [
                    ("NodePrepareResources", "PrepareRequest", "PrepareResponse"),
                    ("NodeUnprepareResources", "UnprepareRequest", "UnprepareResponse"),
                ],
            )
            .build(),
    ]);
    println!("cargo::rerun-if-changed=build.rs");
}

const CODEC: &str = "tonic_prost::ProstCodec";

/// An interface of the kubelet.
struct Api {
    package: &'static str,
    /// The module with its messages.
    messages: &'static str,
}

impl Api {
    fn message(&self, name: &str) -> String {
        format!("{}::{name}", self.messages)
    }

    fn service<const COUNT: usize>(
        &self,
        name: &str,
        methods: [(&str, &str, &str); COUNT],
    ) -> tonic_build::manual::ServiceBuilder {
        let service = Service::builder().name(name).package(self.package);
        methods.into_iter().fold(service, |service, (route, input, output)| {
            service.method(self.method(route, input, output))
        })
    }

    fn method(&self, route: &str, input: &str, output: &str) -> Method {
        let mut name = String::new();
        for letter in route.chars() {
            if letter.is_uppercase() && !name.is_empty() {
                name.push('_');
            }
            name.extend(letter.to_lowercase());
        }
        Method::builder()
            .name(name)
            .route_name(route)
            .input_type(self.message(input))
            .output_type(self.message(output))
            .codec_path(CODEC)
            .build()
    }
}
