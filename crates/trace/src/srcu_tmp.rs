pub(crate) struct Srcu;
pub(crate) struct SrcuGuard<'a>(&'a ());
impl Srcu {
    pub(crate) const fn new() -> Self {
        Self
    }
    pub(crate) fn read(&self) -> SrcuGuard<'static> {
        SrcuGuard(&())
    }
    pub(crate) fn synchronize(&self) {}
}
