"""The site: everything that is published, references and documentation, as pages that link."""
