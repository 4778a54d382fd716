//! System calls behind one fakeable choke point per family.
