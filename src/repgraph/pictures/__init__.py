"""Pictures of what a network sees and says. Modules are imported one by one: each brings what it needs."""
