// Search runs in a worker, which a browser does not start for a page from disk: there an iframe takes its place. The
// theme would get such a script from another host; this one is part of the page.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.ready = new Promise((done) => this.frame.addEventListener("load", done));
      const source = new URL(url, document.baseURI).href;
      this.frame.srcdoc = `<script>
        self.postMessage = ((up) => (data) => up.postMessage(data, "*"))(parent);
        self.importScripts = (...urls) => Promise.all(urls.map((url) => new Promise((done, fail) => {
          const script = document.createElement("script");
          Object.assign(script, { src: url, onload: done, onerror: fail });
          document.head.appendChild(script);
        })));
      <\/script><script src="${source}"><\/script>`;
      window.addEventListener("message", (event) => {
        if (event.source !== this.frame.contentWindow) return;
        const heard = new MessageEvent("message", { data: event.data });
        this.dispatchEvent(heard);
        if (this.onmessage) this.onmessage(heard);
      });
      document.body.appendChild(this.frame);
    }
    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
