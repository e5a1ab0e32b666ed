//! The messages by which a driver registers with the kubelet (`pluginregistration`, version 1) and
//! by which the kubelet prepares claims (`k8s.io.kubelet.pkg.apis.dra.v1`).

use std::collections::HashMap;

/// The type of plugin that a driver registers as.
pub(crate) const KIND: &str = "DRAPlugin";
/// The service that the driver has, as the kubelet names it in a registration.
pub(crate) const SERVICE: &str = "v1.DRAPlugin";

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct InfoRequest {}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PluginInfo {
    #[prost(string, tag = "1")]
    pub(crate) kind: String,
    #[prost(string, tag = "2")]
    pub(crate) name: String,
    /// The path of the driver's own socket.
    #[prost(string, tag = "3")]
    pub(crate) endpoint: String,
    #[prost(string, repeated, tag = "4")]
    pub(crate) supported_versions: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RegistrationStatus {
    #[prost(bool, tag = "1")]
    pub(crate) plugin_registered: bool,
    #[prost(string, tag = "2")]
    pub(crate) error: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RegistrationStatusResponse {}

/// A claim as the kubelet names it.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct ClaimName {
    #[prost(string, tag = "1")]
    pub(crate) namespace: String,
    #[prost(string, tag = "2")]
    pub(crate) uid: String,
    #[prost(string, tag = "3")]
    pub(crate) name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PrepareRequest {
    #[prost(message, repeated, tag = "1")]
    pub(crate) claims: Vec<ClaimName>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PrepareResponse {
    /// By the claim's uid.
    #[prost(map = "string, message", tag = "1")]
    pub(crate) claims: HashMap<String, PreparedClaim>,
}

/// A claim's devices, or the reason why it is not prepared.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PreparedClaim {
    #[prost(message, repeated, tag = "1")]
    pub(crate) devices: Vec<PreparedDevice>,
    #[prost(string, tag = "2")]
    pub(crate) error: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PreparedDevice {
    /// The requests of the claim that the device is for.
    #[prost(string, repeated, tag = "1")]
    pub(crate) request_names: Vec<String>,
    #[prost(string, tag = "2")]
    pub(crate) pool_name: String,
    #[prost(string, tag = "3")]
    pub(crate) device_name: String,
    /// What the container runtime adds to containers.
    #[prost(string, repeated, tag = "4")]
    pub(crate) cdi_device_ids: Vec<String>,
    #[prost(string, optional, tag = "5")]
    pub(crate) share_id: Option<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct UnprepareRequest {
    #[prost(message, repeated, tag = "1")]
    pub(crate) claims: Vec<ClaimName>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct UnprepareResponse {
    /// By the claim's uid.
    #[prost(map = "string, message", tag = "1")]
    pub(crate) claims: HashMap<String, UnpreparedClaim>,
}

/// The reason why a claim is still prepared; empty where it is not.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct UnpreparedClaim {
    #[prost(string, tag = "1")]
    pub(crate) error: String,
}
