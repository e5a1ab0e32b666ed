//! The messages of the kubelet's device plugin API, version `v1beta1`, as far as they are used:
//! fields that are not named here are skipped when they are read.

/// The only version that kubelets know.
pub(crate) const VERSION: &str = "v1beta1";
/// The health of a device that may be given to pods, and of one that may not.
pub(crate) const HEALTHY: &str = "Healthy";
pub(crate) const UNHEALTHY: &str = "Unhealthy";

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Empty {}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct DevicePluginOptions {
    #[prost(bool, tag = "1")]
    pub(crate) pre_start_required: bool,
    #[prost(bool, tag = "2")]
    pub(crate) get_preferred_allocation_available: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RegisterRequest {
    #[prost(string, tag = "1")]
    pub(crate) version: String,
    /// The file name of the plugin's socket, in the folder of the kubelet's.
    #[prost(string, tag = "2")]
    pub(crate) endpoint: String,
    #[prost(string, tag = "3")]
    pub(crate) resource_name: String,
    #[prost(message, optional, tag = "4")]
    pub(crate) options: Option<DevicePluginOptions>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ListAndWatchResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) devices: Vec<Device>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Device {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(string, tag = "2")]
    pub(crate) health: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct AllocateRequest {
    /// One for each container.
    #[prost(message, repeated, tag = "1")]
    pub(crate) container_requests: Vec<ContainerAllocateRequest>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ContainerAllocateRequest {
    #[prost(string, repeated, tag = "1")]
    pub(crate) devices_ids: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct AllocateResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) container_responses: Vec<ContainerAllocateResponse>,
}

/// What a container gets. It is empty: the webhook has mounted what a program needs.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ContainerAllocateResponse {}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PreferredAllocationRequest {}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PreferredAllocationResponse {}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PreStartContainerRequest {}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PreStartContainerResponse {}
