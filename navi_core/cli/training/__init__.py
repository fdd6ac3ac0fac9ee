"""Training commands: `navi train`, `navi train bc`, `navi train apex`, and the flags they share."""
