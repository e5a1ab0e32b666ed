//! Images by their numbers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use super::{Image, Texture};

static TEXTURES: RwLock<BTreeMap<u64, Arc<Texture>>> = RwLock::new(BTreeMap::new());

static SURFACES: RwLock<BTreeMap<u64, Arc<Image>>> = RwLock::new(BTreeMap::new());

/// Numbers are used once: a kernel that holds an old one finds nothing.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Enters a texture; kernels find it by the number.
pub fn add_texture(texture: Texture) -> u64 {
    let object = NEXT.fetch_add(1, Ordering::Relaxed);
    TEXTURES.write().unwrap_or_else(PoisonError::into_inner).insert(object, Arc::new(texture));
    object
}

/// Enters a surface.
pub fn add_surface(image: Image) -> u64 {
    let object = NEXT.fetch_add(1, Ordering::Relaxed);
    SURFACES.write().unwrap_or_else(PoisonError::into_inner).insert(object, Arc::new(image));
    object
}

/// Takes a texture or surface out again; kernels that read through it have ended.
pub fn remove(object: u64) {
    TEXTURES.write().unwrap_or_else(PoisonError::into_inner).remove(&object);
    SURFACES.write().unwrap_or_else(PoisonError::into_inner).remove(&object);
}

/// The texture with this number, if there is one.
pub fn find(object: u64) -> Option<Arc<Texture>> {
    TEXTURES.read().unwrap_or_else(PoisonError::into_inner).get(&object).cloned()
}

/// The image of the surface with this number, if there is one.
pub fn surface(object: u64) -> Option<Arc<Image>> {
    SURFACES.read().unwrap_or_else(PoisonError::into_inner).get(&object).cloned()
}
